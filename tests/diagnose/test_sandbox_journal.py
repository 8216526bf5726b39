"""The journal: files that were saved are restored, also if the process that changed them was killed."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import pytest
from tests.diagnose.home import make_home, state

from stoker.diagnose.sandbox_journal import WriteJournal, recover


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_home(tmp_path / "home")
    return tmp_path / "home"


def change(home: Path, journal: WriteJournal) -> None:
    """A change of each kind, each saved before."""
    for name in ("model.pt", "new.txt", "log.link"):
        journal.save(str(home / name))
    (home / "model.pt").write_bytes(b"new")
    (home / "new.txt").write_text("new")
    (home / "log.link").unlink()
    journal.save(str(home / "run"), moves=True)
    journal.save(str(home / "elsewhere"), moves=True)
    (home / "run").rename(home / "elsewhere")
    (home / "elsewhere/deep/best.pt").write_bytes(b"new")


def test_each_kind_of_change_is_undone(home: Path, tmp_path: Path) -> None:
    before, inode = state(home), (home / "model.pt").stat().st_ino
    journal = WriteJournal(tmp_path / "journal")
    change(home, journal)
    assert state(home) != before
    journal.close()
    assert state(home) == before
    assert (home / "model.pt").stat().st_ino == inode, "it is the same file, as it may have other names"
    assert not (tmp_path / "journal").exists()


def test_the_files_of_a_killed_process_are_restored_by_the_next(home: Path, tmp_path: Path) -> None:
    before = state(home)
    child = os.fork()
    if child == 0:
        try:
            change(home, WriteJournal(tmp_path / "journal"))
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert state(home) != before
    assert recover(tmp_path / "journal")
    assert state(home) == before
    assert not (tmp_path / "journal").exists()


def test_a_restoration_that_is_killed_is_done_again(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(home)
    change(home, WriteJournal(folder := tmp_path / "journal"))
    shutil.copytree(folder, tmp_path / "copy")
    assert recover(tmp_path / "copy")
    (home / "model.pt").write_bytes(b"half")  # as a restoration leaves it that is killed while it writes
    shutil.rmtree(home / "run")
    assert recover(folder) is False, "its process lives"
    shutil.copytree(folder, tmp_path / "again")
    assert recover(tmp_path / "again")
    assert state(home) == before


def test_processes_that_share_a_journal_save_once_and_the_last_restores(home: Path, tmp_path: Path) -> None:
    before = state(home)
    first, second = WriteJournal(tmp_path / "journal"), WriteJournal(tmp_path / "journal")
    first.save(str(home / "model.pt"))
    (home / "model.pt").write_bytes(b"of the first")
    second.save(str(home / "model.pt"))
    (home / "model.pt").write_bytes(b"of the second")
    assert not recover(tmp_path / "journal")
    first.close()
    assert (home / "model.pt").read_bytes() == b"of the second"
    second.close()
    assert state(home) == before


def test_negative_control_with_journals_of_their_own_the_second_would_restore_what_the_first_wrote(
    home: Path, tmp_path: Path
) -> None:
    first, second = WriteJournal(tmp_path / "one"), WriteJournal(tmp_path / "other")
    first.save(str(home / "model.pt"))
    (home / "model.pt").write_bytes(b"of the first")
    second.save(str(home / "model.pt"))
    first.close()
    second.close()
    assert (home / "model.pt").read_bytes() == b"of the first"


def test_what_others_write_meanwhile_stays(home: Path, tmp_path: Path) -> None:
    journal = WriteJournal(tmp_path / "journal")
    change(home, journal)
    (home / "of-another-program").write_text("stays")
    journal.close()
    assert (home / "of-another-program").read_text() == "stays"


def test_a_copy_that_cannot_be_made_is_an_error_and_changes_nothing(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError(28, "No space left on device")

    journal = WriteJournal(tmp_path / "journal")
    monkeypatch.setattr("stoker._disk.copy_file", full)
    with pytest.raises(OSError, match="No space left"):
        journal.save(str(home / "model.pt"))
    journal.close()
    assert (home / "model.pt").read_bytes() == b"precious"


def test_a_torn_record_is_left_out(home: Path, tmp_path: Path) -> None:
    """Its process was killed before it let the program change anything."""
    before = state(home)
    journal = WriteJournal(tmp_path / "journal")
    change(home, journal)
    (tmp_path / "journal" / f"{'0' * 32}.json").write_text('{"path": "/nowh')
    journal.close()
    assert state(home) == before

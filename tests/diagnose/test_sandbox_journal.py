"""The journal: files that were saved are restored, also if the process that changed them was killed."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.diagnose.home import make_home, state

from stoker import _disk
from stoker.diagnose import sandbox_journal
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


def test_a_record_is_read_only_when_it_is_complete(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process once read a record of which nothing was written yet: the write of its program failed."""
    before = state(home)
    first, second = WriteJournal(tmp_path / "journal"), WriteJournal(tmp_path / "journal")
    write, path = _disk.disk.write, home / "model.pt"

    def write_late(fd: int, data: bytes) -> int:
        monkeypatch.setattr(_disk.disk, "write", write)
        monkeypatch.setattr(os, "getpid", lambda: 1)  # the second one is another process
        second.save(str(path))
        path.write_bytes(b"of the second")
        monkeypatch.undo()
        return write(fd, data)

    monkeypatch.setattr(_disk.disk, "write", write_late)
    first.save(str(path))
    first.close()
    assert path.read_bytes() == b"of the second"
    second.close()
    assert state(home) == before


@pytest.mark.parametrize("begin", [recover, WriteJournal])
def test_a_journal_that_another_process_removes_and_begins_again(
    begin: Callable[[Path], object], home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock of a removed journal says nothing about a new one of this name: that one once was restored and removed."""
    before, folder, path = state(home), tmp_path / "journal", home / "model.pt"
    os.close(WriteJournal(folder)._lock)  # its process was killed
    flock, others = fcntl.flock, list[WriteJournal]()

    def lock_late(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        shutil.rmtree(folder)
        others.append(WriteJournal(folder))
        others[0].save(str(path))
        path.write_bytes(b"new")
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    found = begin(folder)
    assert path.read_bytes() == b"new"
    if isinstance(found, WriteJournal):
        found.close()
    else:
        assert found is False, "the new journal is in use"
    assert path.read_bytes() == b"new"
    others[0].close()
    assert state(home) == before


def test_processes_that_begin_and_end_at_once_do_not_disturb_each_other(home: Path, tmp_path: Path) -> None:
    folder, before = tmp_path / "journal", state(home)

    def diagnose(name: str) -> None:
        for number in range(20):
            recover(folder)
            journal = WriteJournal(folder)
            journal.save(str(home / name))
            (home / name).write_text(str(number))
            journal.close()

    children = []
    for name in ("model.pt", "new.txt", "other.txt"):
        children.append(os.fork())
        if children[-1] == 0:
            status = 1
            try:
                diagnose(name)
                status = 0
            finally:
                os._exit(status)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert state(home) == before
    assert not folder.exists()


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


def test_the_time_of_a_folder_is_restored_if_a_folder_in_it_is_removed_first(tmp_path: Path) -> None:
    deep = tmp_path / "run/deep"
    deep.mkdir(parents=True)
    (deep / "a.pt").write_bytes(b"a")
    os.utime(tmp_path / "run", (1e9, 1e9))
    journal = WriteJournal(tmp_path / "journal")
    journal.save(str(deep / "a.pt"), removes=True)
    (deep / "a.pt").unlink()
    journal.save(str(deep), removes=True)
    deep.rmdir()
    journal.save(str(tmp_path / "run/b.pt"))
    (tmp_path / "run/b.pt").write_bytes(b"b")
    journal.close()
    assert (tmp_path / "run").stat().st_mtime == 1e9
    assert (deep / "a.pt").read_bytes() == b"a"


def test_a_name_that_is_not_valid_utf_8_is_restored(tmp_path: Path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff.txt")
    Path(path).write_text("before")
    journal = WriteJournal(tmp_path / "journal")
    journal.save(path)
    Path(path).write_text("after")
    journal.close()
    assert Path(path).read_text() == "before"


@pytest.mark.parametrize("linked", [True, False])
def test_a_large_file_that_is_renamed_is_copied_only_before_it_is_written(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_journal, "LARGE", 1000)
    if not linked:  # as between two disks
        monkeypatch.setattr(sandbox_journal, "_linked", lambda path, place: False)
    old, new = tmp_path / "old.bin", tmp_path / "new.bin"
    old.write_bytes(b"a" * 2000)
    inode = old.stat().st_ino
    journal = WriteJournal(tmp_path / "journal")
    for path in (old, new):
        journal.save(str(path), moves=True)
    old.rename(new)
    assert any(path.stat().st_ino == inode for path in (tmp_path / "journal").iterdir()) == linked
    journal.save(str(new))
    assert not any(path.stat().st_ino == inode for path in (tmp_path / "journal").iterdir())
    new.write_bytes(b"b" * 3000)
    journal.close()
    assert old.read_bytes() == b"a" * 2000
    assert not new.exists()


def test_a_large_file_that_is_removed_is_the_same_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_journal, "LARGE", 1000)
    path, other = tmp_path / "large.bin", tmp_path / "other.bin"
    path.write_bytes(b"a" * 2000)
    other.hardlink_to(path)
    os.utime(path, (1e9, 1e9))
    journal = WriteJournal(tmp_path / "journal")
    journal.save(str(path), removes=True)
    path.unlink()
    path.write_bytes(b"new")
    journal.close()
    assert path.samefile(other)
    assert path.stat().st_mtime == 1e9
    assert path.stat().st_nlink == 2


@pytest.mark.parametrize("way", ["removed", "moved"])
def test_what_is_behind_a_symlink_in_place_of_a_folder_stays(way: str, tmp_path: Path) -> None:
    folder, other = tmp_path / "run", tmp_path / "data"
    for path in (folder, other):
        path.mkdir()
    (folder / "old.pt").write_text("old")
    (other / "new.pt").write_text("of the user")
    journal = WriteJournal(tmp_path / "journal")
    journal.save(str(folder / "new.pt"))
    (folder / "new.pt").write_text("new")
    if way == "removed":
        for name in ("old.pt", "new.pt"):
            journal.save(str(folder / name), removes=True)
            (folder / name).unlink()
        journal.save(str(folder), removes=True)
        folder.rmdir()
    else:
        for path in (folder, tmp_path / "moved"):
            journal.save(str(path), moves=True)
        folder.rename(tmp_path / "moved")
    journal.save(str(folder))
    folder.symlink_to("data")
    journal.close()
    assert (other / "new.pt").read_text() == "of the user"
    assert [path.name for path in folder.iterdir()] == ["old.pt"]
    assert not folder.is_symlink()


def test_a_symlink_may_get_the_inode_of_the_file_that_it_replaces(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_text("before")
    journal = WriteJournal(tmp_path / "journal")
    journal.save(str(path), removes=True)
    path.unlink()
    for number in range(100):  # until the system gives the number again
        path.unlink(missing_ok=True)
        path.symlink_to(f"nowhere{number}")
    journal.close()
    assert path.read_text() == "before"


def test_a_file_that_cannot_be_restored_does_not_keep_the_others_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("a", "bb", "ccc")]
    journal = WriteJournal(tmp_path / "journal")
    for path in paths:
        path.write_text("before")
        journal.save(str(path))
        path.write_text("after")
    restore = sandbox_journal._disk.restore_file

    def failing(source: object, path: Path, **options: bool) -> None:
        if path == paths[1]:
            raise OSError(errno.EIO, "broken")
        restore(source, path, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(sandbox_journal._disk, "restore_file", failing)
    with pytest.raises(OSError, match="broken"):
        journal.close()
    monkeypatch.setattr(sandbox_journal._disk, "restore_file", restore)
    assert [path.read_text() for path in paths] == ["before", "after", "before"]
    assert recover(tmp_path / "journal")
    assert paths[1].read_text() == "before"


def test_hard_links_stay_together(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c", "d")]
    for path, other in ((paths[0], paths[1]), (paths[2], paths[3])):
        path.write_text("before")
        other.hardlink_to(path)
    journal = WriteJournal(tmp_path / "journal")
    (tmp_path / "new").write_text("new")
    journal.save(str(paths[0]))
    paths[0].write_text("after")  # seen by both names
    for path in (paths[1], tmp_path / "new"):
        journal.save(str(path), moves=True)
    (tmp_path / "new").replace(paths[1])
    journal.save(str(paths[2]), removes=True)
    paths[2].unlink()
    journal.close()
    assert [path.read_text() for path in paths] == ["before"] * 4
    assert paths[0].samefile(paths[1])
    assert paths[2].samefile(paths[3])


def test_the_holes_of_a_file_are_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.seek(1 << 30)
        file.write(b"data")
        file.truncate(3 << 30)
    blocks = path.stat().st_blocks
    journal = WriteJournal(tmp_path / "journal")
    journal.save(str(path))
    assert all(one.stat().st_blocks < 1000 for one in (tmp_path / "journal").iterdir())
    path.write_bytes(b"after")
    journal.close()
    assert (path.stat().st_size, path.stat().st_blocks) == (3 << 30, blocks)
    with path.open("rb") as file:
        file.seek((1 << 30) - 1)
        assert file.read(6) == b"\0data\0"


def test_a_torn_record_is_left_out(home: Path, tmp_path: Path) -> None:
    """Its process was killed before it let the program change anything."""
    before = state(home)
    journal = WriteJournal(tmp_path / "journal")
    change(home, journal)
    (tmp_path / "journal" / f"{'0' * 32}.json").write_text('{"path": "/nowh')
    journal.close()
    assert state(home) == before

"""The writer: all or nothing at every operation, and errors that name the path."""

from __future__ import annotations

import errno
import re
import signal
import stat
from pathlib import Path
from typing import Any

import pytest
from tests.harness import FaultyFiles, Zygote

from stoker import _disk
from stoker._disk import AppendFile, Disk
from stoker.errors import DiskError, DiskFullError, OptionError

OLD = b"old" * 1000
NEW = b"newer" * 2000


def count_operations(path: Path) -> int:
    with FaultyFiles() as disk:
        _disk.write_file(path, NEW)
    return disk.operations


# ---- write_file: all or nothing ----


def replace_in_child(path: str, kill_at: int, short_write_at: int | None = None) -> None:
    with FaultyFiles(kill_at=kill_at, short_write_at=short_write_at):
        _disk.write_file(Path(path), NEW)


def test_kill_at_every_operation_leaves_old_or_new(tmp_path: Path, zygote: Zygote) -> None:
    path = tmp_path / "file"
    seen = set()
    for k in range(count_operations(path)):
        _disk.write_file(path, OLD)
        assert zygote.run(replace_in_child, path=path, kill_at=k).signal == signal.SIGKILL
        seen.add(path.read_bytes())
        _disk.write_file(path, NEW)  # over whatever the killed process left
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert seen == {OLD, NEW}


def test_kill_in_the_middle_of_a_write_leaves_old(tmp_path: Path, zygote: Zygote) -> None:
    path = tmp_path / "file"
    _disk.write_file(path, OLD)
    write = 1  # create is operation 0
    assert zygote.run(replace_in_child, path=path, kill_at=write + 1, short_write_at=write).signal == signal.SIGKILL
    assert (tmp_path / "file.tmp").read_bytes() == NEW[: len(NEW) // 2]
    assert path.read_bytes() == OLD


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EACCES, errno.EROFS, errno.EXDEV])
@pytest.mark.parametrize("sticky", [False, True])
def test_an_error_at_every_operation_is_named_and_leaves_no_debris(tmp_path: Path, code: int, sticky: bool) -> None:
    path = tmp_path / "file"
    for k in range(count_operations(path)):
        _disk.write_file(path, OLD)
        with (
            FaultyFiles(error_at=(k, code), sticky=sticky),
            pytest.raises(
                DiskFullError if code in (errno.ENOSPC, errno.EDQUOT) else DiskError, match=re.escape(str(path))
            ) as caught,
        ):
            _disk.write_file(path, NEW)
        assert caught.value.errno == code
        assert [p.name for p in tmp_path.iterdir()] == ["file"]
        assert path.read_bytes() in (OLD, NEW)


def test_a_short_write_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for k in range(count_operations(path)):
        _disk.write_file(path, OLD)
        with FaultyFiles(short_write_at=k):
            _disk.write_file(path, NEW)
        assert path.read_bytes() == NEW


def test_a_write_without_progress_ends_in_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stuck(Disk):
        def write(self, fd: int, data: Any) -> int:
            return 0

    monkeypatch.setattr(_disk, "disk", Stuck())
    with pytest.raises(DiskError, match="EIO"):
        _disk.write_file(tmp_path / "file", b"x")


def test_a_durable_file_is_read_only_and_can_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    _disk.write_file(path, OLD)
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    _disk.write_file(path, NEW)
    assert path.read_bytes() == NEW


def test_a_file_that_need_not_last_is_replaced_whole_and_never_synced(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(OLD)
    with FaultyFiles(record=True) as disk:
        _disk.write_file(path, NEW, durable=False)
    assert path.read_bytes() == NEW
    assert [operation.kind for operation in disk.log] == ["create", "write", "replace"]


# ---- errors ----


def test_disk_full_names_path_needed_and_free_bytes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with FaultyFiles(error_at=(1, errno.ENOSPC)), pytest.raises(DiskFullError) as caught:
        _disk.write_file(path, bytes(12_345))
    assert re.search(rf"{path}.*12,345 bytes needed, [\d,]+ free", str(caught.value))


def test_an_existing_file_is_not_created_again(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(OLD)
    with pytest.raises(DiskError, match="EEXIST"):
        AppendFile.create(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == OLD


# ---- files that grow ----


def test_reopen_cuts_to_the_known_length_and_continues_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"known, and then something unknown")
    file = AppendFile.reopen(path, 5)
    file.append(b" more")
    file.close()
    assert path.read_bytes() == b"known more"
    assert file.num_bytes == 10


def test_reopen_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(OLD)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(DiskError, match="ELOOP"):
        AppendFile.reopen(tmp_path / "link", 0)
    assert (tmp_path / "target").read_bytes() == OLD


# ---- folders ----


def test_every_new_folder_is_made_durable_in_its_parent(tmp_path: Path) -> None:
    with FaultyFiles(record=True) as disk:
        assert _disk.make_folder(tmp_path / "a" / "b")
        assert not _disk.make_folder(tmp_path / "a" / "b")
    found = [(operation.kind, operation.path) for operation in disk.log]
    outer, inner = tmp_path / "a", tmp_path / "a" / "b"
    expected = [("mkdir", outer), ("sync_folder", tmp_path), ("mkdir", inner), ("sync_folder", outer)]
    assert found == expected


def test_removing_a_folder_removes_links_and_not_what_they_point_to(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_bytes(OLD)
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "file").write_bytes(NEW)
    (folder / "to_folder").symlink_to(precious)
    (folder / "to_file").symlink_to(precious / "file")
    _disk.remove_folder(folder)
    assert not folder.exists()
    assert (precious / "file").read_bytes() == OLD


# ---- claim_folder: Stoker's own ----

CLAIM: Any = {"marker": "made.json", "sign": b'"made": "by stoker"', "advice": "Give another folder."}


def test_a_new_or_empty_folder_is_claimed_and_taken_again(tmp_path: Path) -> None:
    for folder in (tmp_path / "new" / "one", tmp_path / "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        assert not _disk.is_own_folder(folder, marker=CLAIM["marker"], sign=CLAIM["sign"])
        _disk.claim_folder(folder, **CLAIM)
        assert (folder / "made.json").read_bytes() == b'{"made": "by stoker"}\n'
        (folder / "work").write_text("more")
        _disk.claim_folder(folder, **CLAIM)
        assert _disk.is_own_folder(folder, marker=CLAIM["marker"], sign=CLAIM["sign"])


@pytest.mark.promise("P24")
@pytest.mark.parametrize("there", ["prices.csv", "bars/prices.csv", "made.json", ".hidden"])
def test_a_folder_with_anything_of_the_users_is_never_claimed(tmp_path: Path, there: str) -> None:
    path = tmp_path / "folder" / there
    path.parent.mkdir(parents=True)
    path.write_text("precious")
    with pytest.raises(OptionError) as error:
        _disk.claim_folder(tmp_path / "folder", **CLAIM)
    first = there.split("/")[0]
    assert str(error.value) == (
        f"{tmp_path}/folder was not made by Stoker: it holds {first!r}, and no made.json. Nothing was changed. Give another folder."
    )
    assert [path for path in (tmp_path / "folder").rglob("*") if path.is_file()] == [path]
    assert path.read_text() == "precious"


@pytest.mark.promise("P24", control=True)
def test_negative_control_by_the_name_of_the_marker_alone_a_folder_of_the_users_is_claimed(tmp_path: Path) -> None:
    (tmp_path / "made.json").write_text("precious")
    (tmp_path / "prices.csv").write_text("precious")
    _disk.claim_folder(tmp_path, **{**CLAIM, "sign": b""})


def claim_in_child(path: str, kill_at: int) -> None:
    with FaultyFiles(kill_at=kill_at):
        _disk.claim_folder(Path(path), **CLAIM)


@pytest.mark.promise("P24")
def test_a_claim_that_was_killed_anywhere_is_made_again(tmp_path: Path, zygote: Zygote) -> None:
    with FaultyFiles() as disk:
        _disk.claim_folder(tmp_path / "whole", **CLAIM)
    for k in range(disk.operations):
        assert zygote.run(claim_in_child, path=str(tmp_path / str(k)), kill_at=k).signal == signal.SIGKILL
        _disk.claim_folder(tmp_path / str(k), **CLAIM)
        assert [path.name for path in (tmp_path / str(k)).iterdir()] == ["made.json"]

"""The fault tools themselves: they must do exactly what they are asked to, or every green fault test is worth nothing."""

from __future__ import annotations

import errno
import signal
from pathlib import Path

import pytest
from tests.harness import FaultyFiles, Zygote

from stoker import _disk
from stoker._disk import AppendFile
from stoker.errors import DiskFullError

OLD = bytes(range(256)) * 40
NEW = bytes(range(255, -1, -1)) * 60


# ---- FaultyFiles ----


def test_every_operation_is_counted_and_logged_in_order(tmp_path: Path) -> None:
    with FaultyFiles(record=True) as disk:
        _disk.write_file(tmp_path / "file", NEW)
    assert [operation.kind for operation in disk.log] == ["create", "write", "sync", "replace", "publish", "sync_folder"]
    assert disk.operations == len(disk.log)
    assert disk.log[1].data == NEW
    assert disk.log[3].target == tmp_path / "file"


def test_a_full_disk_stays_full_for_what_needs_space_only(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(OLD)
    with FaultyFiles(error_at=(0, errno.ENOSPC), sticky=True):
        for _ in range(2):
            with pytest.raises(DiskFullError):
                AppendFile.create(tmp_path / "a")
        with pytest.raises(DiskFullError):
            _disk.make_folder(tmp_path / "folder")
        _disk.remove_file(tmp_path / "old")
    assert list(tmp_path.iterdir()) == []


def die_at(path: str, kill_at: int) -> str:
    with FaultyFiles(kill_at=kill_at):
        _disk.write_file(Path(path), NEW)
    return "alive"


def test_the_killed_operation_never_happens(tmp_path: Path, zygote: Zygote) -> None:
    replace = 3
    outcome = zygote.run(die_at, path=tmp_path / "file", kill_at=replace)
    assert (outcome.exit, outcome.signal, outcome.value) == (None, signal.SIGKILL, None)
    assert [path.name for path in tmp_path.iterdir()] == ["file.tmp"]
    assert zygote.run(die_at, path=tmp_path / "file", kill_at=99).check() == "alive"


# ---- corruption ----


# ---- tiny stores ----

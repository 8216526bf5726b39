"""The power-loss replayer: it must find what an unsynced write or name can do, or its silence is worth nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
from tests.harness import FaultyFiles, Operation, Snapshot, crash_states, take_snapshot
from tests.harness.faulty import Kind

from stoker import _disk
from stoker._disk import AppendFile
from stoker.errors import DiskError
from stoker.store.shards import ColumnFile

OLD = bytes(range(256)) * 40
NEW = bytes(range(255, -1, -1)) * 60


def record(folder: Path, act: Callable[[], Any], **options: Any) -> tuple[list[Operation], Snapshot]:
    before = take_snapshot(folder)
    with FaultyFiles(record=True, **options) as disk:
        act()
    return disk.log, before


def replaced_file(folder: Path, rng: np.random.Generator, *, after_return: bool, **options: Any) -> set[bytes | None]:
    """All that may be found in a file that held OLD and is replaced by NEW."""
    _disk.write_file(folder / "file", OLD)
    log, before = record(folder, lambda: _disk.write_file(folder / "file", NEW), **options)
    return {state.files.get("file") for state in crash_states(log, before, rng, count=2000, after_return=after_return)}


def test_a_durable_file_is_old_or_new_at_any_moment_and_new_after_return(tmp_path: Path, rng: np.random.Generator) -> None:
    assert replaced_file(tmp_path, rng, after_return=False) == {OLD, NEW}
    assert replaced_file(tmp_path, rng, after_return=True) == {NEW}


def test_negative_control_without_file_sync_torn_files_are_found(tmp_path: Path, rng: np.random.Generator) -> None:
    for after_return in (False, True):
        found = replaced_file(tmp_path, rng, after_return=after_return, skip=["sync"]) - {OLD, NEW}
        assert b"" in found
        assert any(data and len(data) < len(NEW) and NEW.startswith(data) for data in found), "cut short"
        assert any(data and len(data) == len(NEW) and not any(data) for data in found), "all zeros"
        assert any(data and len(data) == len(NEW) and 0 < data.count(0) < len(data) for data in found), "some sectors lost"


def test_negative_control_a_file_written_in_place_is_torn(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "file").write_bytes(OLD)

    def overwrite() -> None:
        file = AppendFile.reopen(tmp_path / "file", len(OLD))
        file.overwrite(NEW[: len(OLD)], 0)
        file.close()

    log, before = record(tmp_path, overwrite)
    found = {state.files["file"] for state in crash_states(log, before, rng, count=2000)}
    assert {OLD, NEW[: len(OLD)]} < found
    assert any(is_later_sector_new(data) for data in found), "sectors in any order"


def is_later_sector_new(data: bytes) -> bool:
    """Whether some sector of the file holds what was there before, and one behind it what was written."""
    places = range(0, len(data), 512)
    old = [place for place in places if data[place : place + 512] == OLD[place : place + 512]]
    new = [place for place in places if data[place : place + 512] == NEW[place : place + 512]]
    return bool(old and new) and old[0] < new[-1]


def grow_cut_move_and_clean(folder: Path) -> None:
    """A protocol that uses every operation."""
    _disk.make_folder(folder / "work" / "deep")
    _disk.write_file(folder / "work" / "deep" / "note", b"note")
    column = ColumnFile.create(folder / "work" / "column", np.dtype("<f4"), 3)
    column.append(np.ones((500, 3), "<f4"))
    mark = column.mark()
    column.append(np.zeros((200, 3), "<f4"))
    column.close()
    again = ColumnFile.reopen(folder / "work" / "column", np.dtype("<f4"), 3, mark)
    assert again is not None
    again.append(np.full((100, 3), 7, "<f4"))
    _disk.write_file(folder / "state", b"first", durable=False)
    again.seal(folder)
    _disk.write_file(folder / "state", b"second")
    _disk.remove_folder(folder / "work")


def test_the_replay_without_loss_is_what_is_on_disk_at_every_moment(tmp_path: Path, rng: np.random.Generator) -> None:
    kinds: set[str] = set()
    k, failed = 0, True
    while failed:
        folder = tmp_path / str(k)
        folder.mkdir()
        before = take_snapshot(folder)
        with FaultyFiles(record=True, error_at=(k, errno.EIO)) as disk:
            try:
                grow_cut_move_and_clean(folder)
                failed = False
            except DiskError:
                k += 1
        now = take_snapshot(folder)
        replayed = next(crash_states(disk.log, before, rng, count=1, after_return=True))
        assert (replayed.files, replayed.folders) == (now.files, now.folders)
        kinds |= {operation.kind for operation in disk.log}
    assert kinds == set(get_args(Kind))


# ---- a small protocol of commits: shards, their folder, the manifest, its folder ----

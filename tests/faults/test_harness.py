"""The fault tools themselves: they must do exactly what they are asked to, or every green fault test is worth nothing."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tests.harness import FaultyFiles, Operation, Snapshot, Zygote, crash_states, take_snapshot
from tests.harness.faulty import Kind

from stoker import _disk
from stoker._disk import AppendFile
from stoker.errors import DiskError, DiskFullError
from stoker.store.shards import ColumnFile

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


# The zygote: children that die, hang or exhaust memory are outcomes, and the zygote goes on


def answer(number: int) -> dict[str, Any]:
    return {"number": number, "folder": str(Path.cwd()), "pid": os.getpid()}


def fail() -> None:
    raise DiskFullError(errno.ENOSPC, "no space")


def take_memory(num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def count_threads_of_zygote() -> int:
    return len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))


def read_arrow() -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(1000))}), "table.parquet")
    return int(pq.read_table("table.parquet", use_threads=True).num_rows)


def test_a_child_returns_a_value_from_a_folder_of_its_own(zygote: Zygote, tmp_path: Path) -> None:
    first, second = zygote.run(answer, number=1).check(), zygote.run(answer, number=2).check()
    assert (first["number"], second["number"]) == (1, 2)
    assert first["pid"] != second["pid"] != os.getpid()
    assert first["folder"] != second["folder"]
    assert not Path(first["folder"]).exists()
    assert zygote.run(answer, number=3, work_folder=tmp_path).check()["folder"] == str(tmp_path)


def test_an_exception_is_reported_with_type_message_and_trace(zygote: Zygote) -> None:
    outcome = zygote.run(fail)
    assert (outcome.exit, outcome.error) == (1, "DiskFullError: [Errno 28] no space")
    assert "in fail" in outcome.trace
    with pytest.raises(ChildProcessError, match="in fail"):
        outcome.check()


def test_memory_is_limited_on_request_only(zygote: Zygote) -> None:
    outcome = zygote.run(take_memory, num_bytes=300 << 20, memory_bytes=200 << 20)
    assert outcome.error.startswith("MemoryError")
    assert zygote.run(take_memory, num_bytes=300 << 20).check() == 300 << 20


def test_the_zygote_has_no_threads_so_that_children_can_use_arrow(zygote: Zygote) -> None:
    assert zygote.run(count_threads_of_zygote).check() == 1
    assert zygote.run(read_arrow, seconds=20).check() == 1000
    assert zygote.run(count_threads_of_zygote).check() == 1


# The power-loss replayer: it must find what an unsynced write or name can do, or its silence is worth nothing


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

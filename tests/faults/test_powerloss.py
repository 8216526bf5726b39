"""The power-loss replayer: it must find what an unsynced write or name can do, or its silence is worth nothing."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from tests.harness import FaultyFiles, Operation, Snapshot, crash_states, take_snapshot, tiny_store
from tests.harness.faulty import Kind

from stoker import _disk
from stoker._disk import AppendFile
from stoker.errors import DiskError, StoreError, StoreNotFoundError
from stoker.store import manifest as manifests
from stoker.store.opening import open_store
from stoker.store.shards import ColumnFile, damaged_blocks

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


def test_negative_control_without_folder_sync_the_old_file_is_found_after_return(tmp_path: Path, rng: np.random.Generator) -> None:
    assert replaced_file(tmp_path, rng, after_return=True, skip=["sync_folder"]) == {OLD, NEW}


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


def test_a_file_that_need_not_last_may_be_anything(tmp_path: Path, rng: np.random.Generator) -> None:
    log, before = record(tmp_path, lambda: _disk.write_file(tmp_path / "file", NEW, durable=False))
    found = {state.files.get("file") for state in crash_states(log, before, rng, count=500, after_return=True)}
    assert {None, b"", NEW} < found


def test_a_new_folder_lasts_only_with_its_parent_synced(tmp_path: Path, rng: np.random.Generator) -> None:
    def make() -> None:
        _disk.make_folder(tmp_path / "a" / "b")
        _disk.write_file(tmp_path / "a" / "b" / "file", NEW)

    for skip, expected in (((), {NEW}), (("sync_folder",), {NEW, None})):
        log, before = record(tmp_path, make, skip=skip)
        states = list(crash_states(log, before, rng, count=200, after_return=True))
        assert {state.files.get("a/b/file") for state in states} == expected
        assert all(("a" in state.folders) or not state.files for state in states)
        _disk.remove_folder(tmp_path / "a")


def test_a_file_moved_between_folders_is_kept_by_syncing_where_it_goes(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "work").mkdir()

    def move(synced: Path) -> None:
        column = ColumnFile.create(tmp_path / "work" / "column", np.dtype("<i8"))
        column.append(np.arange(100))
        name = column.seal(tmp_path).file
        _disk.disk.sync_folder(synced)
        (tmp_path / name).unlink()

    for synced, always in ((tmp_path, True), (tmp_path / "work", False)):
        log, before = record(tmp_path, lambda synced=synced: move(synced))  # type: ignore[misc]
        states = crash_states(log, before, rng, count=200, after_return=True)
        found = [any(name.endswith(".npy") for name in state.files) for state in states]
        assert all(found) == always


def test_a_removed_file_may_come_back_until_its_folder_is_synced(tmp_path: Path, rng: np.random.Generator) -> None:
    def remove(*, sync: bool) -> None:
        _disk.write_file(tmp_path / "file", OLD)
        _disk.remove_file(tmp_path / "file")
        if sync:
            _disk.disk.sync_folder(tmp_path)

    for sync, expected in ((False, {None, OLD}), (True, {None})):
        log, before = record(tmp_path, lambda sync=sync: remove(sync=sync))  # type: ignore[misc]
        assert {s.files.get("file") for s in crash_states(log, before, rng, count=200, after_return=True)} == expected


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


def commit(folder: Path, seed: int) -> Snapshot:
    """Write or replace a small store as a pack does, and remove what the new manifest does not name."""
    debris = {path.name for path in (folder / "store").glob("*.npy")}
    built = tiny_store(folder / "store", columns=["price", "symbol"], lengths=[900, 0, 300], seed=seed)
    for name in sorted(debris - {shard.file for shard in manifests.shards(built.manifest)}):
        _disk.remove_file(folder / "store" / name)
    return take_snapshot(folder)


def whole(state: Snapshot, stores: dict[str, Snapshot]) -> str:
    """Which of the stores a state holds whole, down to the last byte of each shard; "torn" if none, "absent" if no manifest."""
    found = state.files.get("store/manifest.json")
    for label, store in stores.items():
        if found == store.files["store/manifest.json"]:
            named = [f"store/{shard.file}" for shard in manifests.shards(manifests.load(found, label))]
            return label if all(state.files.get(name) == store.files[name] for name in named) else "torn"
    return "absent" if found is None else "torn"


def commit_again(folder: Path) -> tuple[list[Operation], Snapshot, dict[str, Snapshot]]:
    stores = {"old": commit(folder, 1)}
    with FaultyFiles(record=True) as disk:
        stores["new"] = commit(folder, 2)
    return disk.log, stores["old"], stores


def test_a_first_store_is_absent_or_whole(tmp_path: Path, rng: np.random.Generator) -> None:
    before = take_snapshot(tmp_path)
    with FaultyFiles(record=True) as disk:
        stores = {"new": commit(tmp_path, 1)}
    assert {whole(state, stores) for state in crash_states(disk.log, before, rng, count=3000)} == {"absent", "new"}
    assert {whole(state, stores) for state in crash_states(disk.log, before, rng, count=500, after_return=True)} == {"new"}


def test_a_store_that_is_replaced_is_old_or_new_and_new_after_return(tmp_path: Path, rng: np.random.Generator) -> None:
    log, before, stores = commit_again(tmp_path)
    assert {whole(state, stores) for state in crash_states(log, before, rng, count=3000)} == {"old", "new"}
    assert {whole(state, stores) for state in crash_states(log, before, rng, count=500, after_return=True)} == {"new"}


@pytest.mark.slow
def test_negative_control_no_single_sync_can_be_left_out(tmp_path: Path, rng: np.random.Generator) -> None:
    log, before, stores = commit_again(tmp_path)
    syncs = [i for i, operation in enumerate(log) if operation.kind in ("sync", "sync_folder")]
    assert len(syncs) == 7, "four shards, their folder, the manifest, its folder"
    for i in syncs:
        shorter = log[:i] + log[i + 1 :]
        during = {whole(state, stores) for state in crash_states(shorter, before, rng, count=3000)}
        after = {whole(state, stores) for state in crash_states(shorter, before, rng, count=500, after_return=True)}
        assert "torn" in during | after or "old" in after, f"nothing found without {log[i]}"


def test_the_library_judges_states_as_the_bytes_do(tmp_path: Path, rng: np.random.Generator) -> None:
    log, before, stores = commit_again(tmp_path / "disk")
    damaged = [operation for operation in log if operation.kind != "sync"]
    digests = {store_digest(store): label for label, store in stores.items()}
    judged = set()
    for i, state in enumerate(crash_states(damaged, before, rng, count=150)):
        state.write_to(tmp_path / str(i))
        assert judge(tmp_path / str(i) / "store", digests) == whole(state, stores), state.label
        judged.add(whole(state, stores))
    assert judged == {"old", "new", "torn"}


def store_digest(store: Snapshot) -> str:
    return manifests.load(store.files["store/manifest.json"], "manifest").digest


def judge(folder: Path, digests: dict[str, str]) -> str:
    try:
        manifest = open_store(folder).manifest
    except StoreNotFoundError:
        return "absent"
    except StoreError:
        return "torn"
    assert manifest is not None
    torn = any(list(damaged_blocks(folder, shard, lambda _: None)) for shard in manifests.shards(manifest))
    return "torn" if torn else digests[manifest.digest]

"""The fault tools themselves: they must find the faults that they exist to find, or every green fault test is worth nothing."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from stoker import files
from stoker.errors import DiskError, DiskFull, StoreError, StoreNotFound
from stoker.files import AppendFile
from stoker.store import manifest as manifests
from stoker.store.columnfile import ColumnFile
from stoker.store.manifest import Manifest, Shard
from stoker.store.shard import damaged_blocks
from stoker.store.store import open_store
from stoker.testing import (
    COLUMNS,
    CORRUPTIONS,
    FaultyFiles,
    Operation,
    Snapshot,
    Zygote,
    corrupt,
    crash_states,
    take_snapshot,
    tiny_store,
)
from stoker.testing.faulty import Kind

OLD = bytes(range(256)) * 40
NEW = bytes(range(255, -1, -1)) * 60


# ---- FaultyFiles ----


def test_every_operation_is_counted_and_logged_in_order(tmp_path: Path) -> None:
    with FaultyFiles(record=True) as disk:
        files.write_file(tmp_path / "file", NEW)
    assert [operation.kind for operation in disk.log] == ["create", "write", "sync", "replace", "publish", "sync_folder"]
    assert disk.operations == len(disk.log)
    assert disk.log[1].data == NEW
    assert disk.log[3].target == tmp_path / "file"


def test_the_real_disk_is_back_after_the_block_even_after_an_error(tmp_path: Path) -> None:
    real = files.disk
    with pytest.raises(DiskError), FaultyFiles(error_at=(0, errno.EIO)):
        files.write_file(tmp_path / "file", NEW)
    assert files.disk is real


def test_an_operation_that_fails_has_not_happened(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with FaultyFiles(error_at=(0, errno.EIO)) as disk, pytest.raises(OSError, match="Input/output error"):
        disk.create(path)
    assert not path.exists()


def test_only_the_chosen_operation_fails(tmp_path: Path) -> None:
    with FaultyFiles(error_at=(0, errno.ENOSPC)):
        with pytest.raises(DiskFull):
            AppendFile.create(tmp_path / "a")
        AppendFile.create(tmp_path / "a").close()


def test_a_full_disk_stays_full_for_what_needs_space_only(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(OLD)
    with FaultyFiles(error_at=(0, errno.ENOSPC), sticky=True):
        for _ in range(2):
            with pytest.raises(DiskFull):
                AppendFile.create(tmp_path / "a")
        with pytest.raises(DiskFull):
            files.make_folder(tmp_path / "folder")
        files.remove_file(tmp_path / "old")
    assert list(tmp_path.iterdir()) == []


def test_a_short_write_stores_half_and_says_so(tmp_path: Path) -> None:
    with FaultyFiles(short_write_at=1) as disk:
        fd = disk.create(tmp_path / "file")
        assert disk.write(fd, b"0123456789") == 5
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == b"01234"


def die_at(path: str, kill_at: int) -> str:
    with FaultyFiles(kill_at=kill_at):
        files.write_file(Path(path), NEW)
    return "alive"


def test_the_killed_operation_never_happens(tmp_path: Path, zygote: Zygote) -> None:
    replace = 3
    outcome = zygote.run(die_at, path=tmp_path / "file", kill_at=replace)
    assert (outcome.exit, outcome.signal, outcome.value) == (None, signal.SIGKILL, None)
    assert [path.name for path in tmp_path.iterdir()] == ["file.tmp"]
    assert zygote.run(die_at, path=tmp_path / "file", kill_at=99).check() == "alive"


def test_threads_are_counted_one_by_one(tmp_path: Path) -> None:
    def grow(number: int) -> None:
        file = AppendFile.create(tmp_path / str(number))
        for _ in range(100):
            file.append(bytes([number]))
        file.close()

    with FaultyFiles(record=True) as disk:
        threads = [threading.Thread(target=grow, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert disk.operations == len(disk.log) == 8 * 101
    for number in range(8):
        writes = [o for o in disk.log if o.kind == "write" and o.path.name == str(number)]
        assert [o.offset for o in writes] == list(range(100))
        assert {o.data for o in writes} == {bytes([number])}


def test_skipping_is_for_promises_of_durability_only() -> None:
    with pytest.raises(ValueError, match="skip takes publish, sync, sync_folder; found unlink"):
        FaultyFiles(skip=["unlink"])  # type: ignore[list-item]


def test_a_file_opened_before_the_recording_cannot_be_recorded(tmp_path: Path) -> None:
    file = AppendFile.create(tmp_path / "file")
    with FaultyFiles(record=True), pytest.raises(ValueError, match="before the recording"):
        file.append(b"x")
    file.close()


# ---- the power-loss replayer ----


def record(folder: Path, act: Callable[[], Any], **options: Any) -> tuple[list[Operation], Snapshot]:
    before = take_snapshot(folder)
    with FaultyFiles(record=True, **options) as disk:
        act()
    return disk.log, before


def replaced_file(folder: Path, rng: np.random.Generator, *, after_return: bool, **options: Any) -> set[bytes | None]:
    """All that may be found in a file that held OLD and is replaced by NEW."""
    files.write_file(folder / "file", OLD)
    log, before = record(folder, lambda: files.write_file(folder / "file", NEW), **options)
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
    assert any(OLD.startswith(data[:512]) and NEW[512:1024] == data[512:1024] for data in found if data), "sectors in any order"


def test_a_file_that_need_not_last_may_be_anything(tmp_path: Path, rng: np.random.Generator) -> None:
    log, before = record(tmp_path, lambda: files.write_file(tmp_path / "file", NEW, durable=False))
    found = {state.files.get("file") for state in crash_states(log, before, rng, count=500, after_return=True)}
    assert {None, b"", NEW} < found


def test_a_new_folder_lasts_only_with_its_parent_synced(tmp_path: Path, rng: np.random.Generator) -> None:
    def make() -> None:
        files.make_folder(tmp_path / "a" / "b")
        files.write_file(tmp_path / "a" / "b" / "file", NEW)

    for skip, expected in (((), {NEW}), (("sync_folder",), {NEW, None})):
        log, before = record(tmp_path, make, skip=skip)
        states = list(crash_states(log, before, rng, count=200, after_return=True))
        assert {state.files.get("a/b/file") for state in states} == expected
        assert all(("a" in state.folders) or not state.files for state in states)
        files.remove_folder(tmp_path / "a")


def test_a_file_moved_between_folders_is_kept_by_syncing_where_it_goes(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "work").mkdir()

    def move(synced: Path) -> None:
        column = ColumnFile.create(tmp_path / "work" / "column", np.dtype("<i8"))
        column.append(np.arange(100))
        name = column.seal(tmp_path).file
        files.disk.sync_folder(synced)
        (tmp_path / name).unlink()

    for synced, always in ((tmp_path, True), (tmp_path / "work", False)):
        log, before = record(tmp_path, lambda synced=synced: move(synced))  # type: ignore[misc]
        states = crash_states(log, before, rng, count=200, after_return=True)
        found = [any(name.endswith(".npy") for name in state.files) for state in states]
        assert all(found) == always


def test_a_removed_file_may_come_back_until_its_folder_is_synced(tmp_path: Path, rng: np.random.Generator) -> None:
    def remove(*, sync: bool) -> None:
        files.write_file(tmp_path / "file", OLD)
        files.remove_file(tmp_path / "file")
        if sync:
            files.disk.sync_folder(tmp_path)

    for sync, expected in ((False, {None, OLD}), (True, {None})):
        log, before = record(tmp_path, lambda sync=sync: remove(sync=sync))  # type: ignore[misc]
        assert {s.files.get("file") for s in crash_states(log, before, rng, count=200, after_return=True)} == expected


def grow_cut_move_and_clean(folder: Path) -> None:
    """A protocol that uses every operation."""
    files.make_folder(folder / "work" / "deep")
    files.write_file(folder / "work" / "deep" / "note", b"note")
    column = ColumnFile.create(folder / "work" / "column", np.dtype("<f4"), 3)
    column.append(np.ones((500, 3), "<f4"))
    mark = column.mark()
    column.append(np.zeros((200, 3), "<f4"))
    column.close()
    again = ColumnFile.reopen(folder / "work" / "column", np.dtype("<f4"), 3, mark)
    assert again is not None
    again.append(np.full((100, 3), 7, "<f4"))
    files.write_file(folder / "state", b"first", durable=False)
    again.seal(folder)
    files.write_file(folder / "state", b"second")
    files.remove_folder(folder / "work")


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


def test_a_state_can_be_laid_out_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_bytes(OLD)
    state = take_snapshot(tmp_path / "a")
    state.write_to(tmp_path / "copy")
    assert take_snapshot(tmp_path / "copy").files == {"file": OLD}
    assert take_snapshot(tmp_path / "copy").folders == {"b"}


def test_the_same_seed_gives_the_same_states(tmp_path: Path) -> None:
    log, before = record(tmp_path, lambda: grow_cut_move_and_clean(tmp_path))
    first, second = (
        [(s.files, s.folders, s.label) for s in crash_states(log, before, np.random.default_rng(5), count=300)] for _ in range(2)
    )
    assert first == second
    assert first[-1][2].startswith(f"power lost after {len(log)} of {len(log)} operations (rmdir work")


# ---- a small protocol of commits: shards, their folder, the manifest, its folder ----


def commit(folder: Path, seed: int) -> Snapshot:
    """Write or replace a small store as a pack does, and remove what the new manifest does not name."""
    debris = {path.name for path in (folder / "store").glob("*.npy")}
    built = tiny_store(folder / "store", columns=["price", "symbol"], lengths=[900, 0, 300], seed=seed)
    for name in sorted(debris - {shard.file for shard in shards_of(built.manifest)}):
        files.remove_file(folder / "store" / name)
    return take_snapshot(folder)


def shards_of(manifest: Manifest) -> Iterator[Shard]:
    for column in manifest.columns:
        if column.values is not None:
            yield column.values
        if column.texts is not None:
            yield from (column.texts.utf8, column.texts.offsets)
    if manifest.offsets is not None:
        yield manifest.offsets


def whole(state: Snapshot, stores: dict[str, Snapshot]) -> str:
    """Which of the stores a state holds whole, down to the last byte of each shard; "torn" if none, "absent" if no manifest."""
    found = state.files.get("store/manifest.json")
    for label, store in stores.items():
        if found == store.files["store/manifest.json"]:
            named = [f"store/{shard.file}" for shard in shards_of(manifests.load(found, label))]
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
    except StoreNotFound:
        return "absent"
    except StoreError:
        return "torn"
    assert manifest is not None
    torn = any(list(damaged_blocks(folder, shard, lambda _: None)) for shard in shards_of(manifest))
    return "torn" if torn else digests[manifest.digest]


# ---- the zygote ----


def answer(number: int) -> dict[str, Any]:
    return {"number": number, "folder": str(Path.cwd()), "pid": os.getpid()}


def fail() -> None:
    raise DiskFull(errno.ENOSPC, "no space")


def leave(code: int) -> None:
    raise SystemExit(code)


def spin() -> None:
    while True:
        pass


def take_memory(num_bytes: int) -> int:
    return len(bytearray(num_bytes))


def say_much() -> str:
    return "x" * 3_000_000


def count_threads_of_zygote() -> int:
    return len(list(Path(f"/proc/{os.getppid()}/task").iterdir()))


def read_arrow() -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(1000))}), "table.parquet")
    return int(pq.read_table("table.parquet", use_threads=True).num_rows)


def wait_for(path: str) -> bool:
    while not Path(path).exists():
        time.sleep(0.001)
    return True


def return_what_json_cannot_say() -> Any:
    return {1, 2}


def test_a_child_returns_a_value_from_a_folder_of_its_own(zygote: Zygote, tmp_path: Path) -> None:
    first, second = zygote.run(answer, number=1).check(), zygote.run(answer, number=2).check()
    assert (first["number"], second["number"]) == (1, 2)
    assert first["pid"] != second["pid"] != os.getpid()
    assert first["folder"] != second["folder"]
    assert not Path(first["folder"]).exists()
    assert zygote.run(answer, number=3, work_folder=tmp_path).check()["folder"] == str(tmp_path)


def test_an_exception_is_told_with_type_message_and_trace(zygote: Zygote) -> None:
    outcome = zygote.run(fail)
    assert (outcome.exit, outcome.error) == (1, "DiskFull: [Errno 28] no space")
    assert outcome.trace is not None
    assert "in fail" in outcome.trace
    with pytest.raises(ChildProcessError, match="in fail"):
        outcome.check()


def test_an_exit_status_is_told(zygote: Zygote) -> None:
    assert zygote.run(leave, code=7).exit == 7


def test_an_endless_child_is_ended_by_the_alarm(zygote: Zygote) -> None:
    assert zygote.run(spin, seconds=1).signal == signal.SIGALRM


def test_memory_is_limited_on_request_only(zygote: Zygote) -> None:
    outcome = zygote.run(take_memory, num_bytes=300 << 20, memory_bytes=200 << 20)
    assert outcome.error is not None
    assert outcome.error.startswith("MemoryError")
    assert zygote.run(take_memory, num_bytes=300 << 20).check() == 300 << 20


def test_a_long_answer_arrives_whole(zygote: Zygote) -> None:
    assert len(zygote.run(say_much).check()) == 3_000_000


def test_an_answer_that_json_cannot_say_is_an_error(zygote: Zygote) -> None:
    outcome = zygote.run(return_what_json_cannot_say)
    assert outcome.error == "TypeError: Object of type set is not JSON serializable"


def test_the_zygote_has_no_threads_so_that_children_can_use_arrow(zygote: Zygote) -> None:
    assert zygote.run(count_threads_of_zygote).check() == 1
    assert zygote.run(read_arrow, seconds=20).check() == 1000
    assert zygote.run(count_threads_of_zygote).check() == 1


def test_children_run_side_by_side(zygote: Zygote, tmp_path: Path) -> None:
    waiting = zygote.start(wait_for, path=tmp_path / "go")
    assert zygote.run(answer, number=1).check()["number"] == 1
    (tmp_path / "go").touch()
    assert waiting.wait().check() is True


def test_a_child_can_be_killed_by_its_number_and_only_once(zygote: Zygote) -> None:
    endless, other = zygote.start(spin), zygote.start(spin)
    endless.kill(signal.SIGTERM)
    assert endless.wait().signal == signal.SIGTERM
    endless.kill(signal.SIGKILL)
    other.kill(signal.SIGKILL)
    assert other.wait().signal == signal.SIGKILL


def test_a_function_that_cannot_be_found_is_an_error_of_the_case(zygote: Zygote) -> None:
    def local() -> None: ...

    outcome = zygote.run(local)
    assert outcome.error is not None
    assert "local" in outcome.error
    assert zygote.run(answer, number=1).exit == 0


def test_no_child_outlives_the_zygote() -> None:
    with Zygote(imports=[]) as own:
        pid = own.start(spin).pid
    assert not Path(f"/proc/{pid}").exists()


# ---- corruption ----


@pytest.mark.parametrize("kind", CORRUPTIONS)
def test_each_corruption_changes_a_file_and_says_how(tmp_path: Path, rng: np.random.Generator, kind: str) -> None:
    path = tmp_path / "file"
    for data in (b"ab", OLD, bytes(5000) + b"\1" * 5000):
        path.write_bytes(data)
        path.chmod(0o444)
        assert corrupt(path, rng, kind=kind).startswith("file: ")
        assert path.read_bytes() != data


def test_corruption_is_replayed_by_its_seed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    results = []
    for _ in range(2):
        path.write_bytes(OLD)
        results.append((corrupt(path, np.random.default_rng(3)), path.read_bytes()))
    assert results[0] == results[1]


def test_an_empty_file_can_only_grow(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "file").touch()
    assert "appended" in corrupt(tmp_path / "file", rng)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ValueError, match="cannot change"):
        corrupt(tmp_path / "file", rng, kind="flip")


def test_what_a_corruption_cannot_change_is_an_error(tmp_path: Path, rng: np.random.Generator) -> None:
    (tmp_path / "file").write_bytes(bytes(100))
    with pytest.raises(ValueError, match="'zero' cannot change"):
        corrupt(tmp_path / "file", rng, kind="zero")


# ---- tiny stores ----


def test_the_same_arguments_give_the_same_bytes(tmp_path: Path) -> None:
    names_and_seeds = (("a", 1), ("b", 1), ("c", 2))
    first, second, other = (take_snapshot(tiny_store(tmp_path / name, seed=seed).path) for name, seed in names_and_seeds)
    assert first.files == second.files
    assert first.files != other.files


def test_a_tiny_store_has_one_column_of_every_kind(tmp_path: Path) -> None:
    store = tiny_store(tmp_path / "store").open()
    assert tuple(store.schema) == COLUMNS
    assert {column.kind for column in store.schema.values()} == {"number", "bfloat16", "timestamp", "duration", "category", "text"}
    assert {column.level for column in store.schema.values()} == {"step", "series"}


def test_a_tiny_store_of_unequal_lengths_is_not_uniform(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one length"):
        tiny_store(tmp_path / "store", lengths=(1, 2), uniform=True)

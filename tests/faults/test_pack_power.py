"""Power that fails during a pack: never a torn store, always the new one once the pack has returned, and a next pack that works."""

from __future__ import annotations

import errno
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.faults.shapes import counted_blocks, make_source, pack_shape, whole_content
from tests.harness import FaultyFiles, Operation, Snapshot, count_states, crash_states, take_snapshot
from tests.harness.faulty import Kind

from stoker.errors import DiskError
from stoker.store import writer
from stoker.store.manifest import MANIFEST_NAME
from stoker.store.writer import remove_debris

KINDS = ("fresh", "replacing", "taken up again")


@dataclass(frozen=True)
class Recording:
    """One pack, operation by operation, and the stores that may be found."""

    name: str
    source: Path
    log: list[Operation]
    before: Snapshot
    stores: dict[str, dict[str, bytes]]

    def found(self, state: Snapshot) -> str:
        """Which store a state holds, told by its bytes and not by the library that is under test."""
        manifest = state.files.get(f"store/{MANIFEST_NAME}")
        if manifest is None:
            return "none"
        for label, content in self.stores.items():
            if manifest == content[MANIFEST_NAME]:
                whole = all(state.files.get(f"store/{name}") == data for name, data in content.items())
                return label if whole else "torn"
        return "torn"

    def count(self, rng: np.random.Generator, count: int, *, after_return: bool = False) -> Counter[str]:
        return count_states(self.log, self.before, rng, self.found, count=count, after_return=after_return)


class Interrupted(FaultyFiles):
    """Records a pack that is interrupted (which cleans nothing up) and all that follows."""

    def __init__(self, stop_at: int, **options: Any) -> None:
        super().__init__(record=True, **options)
        self._stop_at = stop_at

    def _begin(self, kind: Kind) -> int:
        number = super()._begin(kind)
        if number == self._stop_at:
            raise KeyboardInterrupt
        return number


def record(folder: Path, kind: str, name: str = "grouped", **options: Any) -> Recording:
    source, disk = make_source(name, folder / "source"), folder / "disk"
    disk.mkdir()
    stores = {}
    if kind == "replacing":
        pack_shape("straight", make_source("straight", folder / "other", seed=9), disk / "store")
        stores["old"] = whole_content(disk / "store")
    before = take_snapshot(disk)
    with Interrupted(150 if kind == "taken up again" else -1, **options) as recorder:
        if kind == "taken up again":
            with pytest.raises(KeyboardInterrupt):
                pack_shape(name, source, disk / "store")
        pack_shape(name, source, disk / "store")
    assert kind != "taken up again" or any(operation.kind == "open_again" for operation in recorder.log)
    stores["new"] = whole_content(disk / "store")
    return Recording(name, source, recorder.log, before, stores)


def check(recording: Recording, rng: np.random.Generator, count: int) -> None:
    during = recording.count(rng, count)
    assert set(during) == {"old" if "old" in recording.stores else "none", "new"}
    assert set(recording.count(rng, count // 3, after_return=True)) == {"new"}


@pytest.mark.promise("P1")
@pytest.mark.parametrize("name", ["grouped", *(pytest.param(name, marks=pytest.mark.slow) for name in ("categories", "text keys"))])
@pytest.mark.parametrize("kind", KINDS)
def test_no_power_loss_tears_a_store_and_none_undoes_a_pack_that_has_returned(
    quick_path: Path, rng: np.random.Generator, kind: str, name: str
) -> None:
    check(record(quick_path, kind, name), rng, 1500)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("count", [25, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_after_any_power_loss_the_next_pack_makes_the_same_store(
    quick_path: Path, rng: np.random.Generator, kind: str, count: int
) -> None:
    recording = record(quick_path, kind)
    read_again = set()
    for i, state in enumerate(crash_states(recording.log, recording.before, rng, count=count)):
        folder = quick_path / str(i)
        state.write_to(folder)
        with counted_blocks() as num_blocks:
            pack_shape(recording.name, recording.source, folder / "store")
        assert whole_content(folder / "store") == recording.stores["new"], state.label
        read_again.add(num_blocks[0])
    assert len(read_again) >= 3, "some packs went on, others started over"


# ---- negative controls: without a sync the replayer finds the fault ----


@pytest.mark.promise("P1", control=True)
@pytest.mark.parametrize("kind", KINDS)
def test_negative_control_without_file_sync_torn_stores_are_found(quick_path: Path, rng: np.random.Generator, kind: str) -> None:
    recording = record(quick_path, kind, skip=["sync"])
    assert recording.count(rng, 1500)["torn"] > 0
    assert recording.count(rng, 300, after_return=True)["torn"] > 200


@pytest.mark.promise("P1", control=True)
@pytest.mark.parametrize("kind", KINDS)
def test_negative_control_without_folder_sync_lost_stores_are_found(quick_path: Path, rng: np.random.Generator, kind: str) -> None:
    recording = record(quick_path, kind, skip=["sync_folder"])
    after = recording.count(rng, 500, after_return=True)
    assert after["old" if kind == "replacing" else "none"] > 0
    assert after["torn"] > 0


@pytest.mark.slow
def test_negative_control_no_sync_from_the_first_shard_on_can_be_left_out(quick_path: Path, rng: np.random.Generator) -> None:
    recording = record(quick_path, "replacing", "straight")
    kinds = [operation.kind for operation in recording.log]
    shards = [i for i, operation in enumerate(recording.log) if operation.target is not None and operation.target.suffix == ".npy"]
    first = max(i for i in range(shards[0]) if kinds[i] == "sync")  # the mark of the work folder was synced before
    needed = [i for i in range(first, len(kinds)) if kinds[i] in ("sync", "sync_folder")]
    assert len(needed) == 6, "three shards, their folder, the manifest, its folder"
    for i in needed:
        left_out = replace(recording, log=recording.log[:i] + recording.log[i + 1 :])
        during, after = left_out.count(rng, 4000), left_out.count(rng, 500, after_return=True)
        assert during["torn"] or after["torn"] or after["old"], f"nothing found without {recording.log[i]}"


# ---- a disk that refuses the last sync, and then loses power ----


def record_failed_commit(folder: Path) -> Recording:
    """A pack over an older store whose last sync fails, so that the old manifest may still come back."""
    good = record(folder, "replacing", "straight")
    last_sync = max(i for i, operation in enumerate(good.log) if operation.kind == "sync_folder")
    disk = folder / "again"
    good.before.write_to(disk)
    with FaultyFiles(record=True, error_at=(last_sync, errno.EIO)) as recorder, pytest.raises(DiskError):
        pack_shape(good.name, good.source, disk / "store")
    return replace(good, log=recorder.log, before=replace(good.before, root=disk))


def test_a_failed_sync_of_the_commit_removes_no_shard_that_the_old_store_may_need(
    quick_path: Path, rng: np.random.Generator
) -> None:
    recording = record_failed_commit(quick_path)
    assert set(recording.count(rng, 3000)) == {"old", "new"}


def test_negative_control_cleaning_up_without_a_sync_loses_the_old_store(quick_path: Path, rng: np.random.Generator) -> None:
    with mock.patch.object(writer, "_clean_up", remove_debris):
        recording = record_failed_commit(quick_path)
    assert recording.count(rng, 3000)["torn"] > 0

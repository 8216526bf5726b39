"""Power that fails during a save: LATEST and BEST never lead to a torn checkpoint, and a save that has returned stays."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from tests.faults.saving import KINDS, NEW, OLD, found, lies_in, prepare, record_save, resume_training
from tests.faults.test_checkpoint_kill import clean_then_name, name_then_write
from tests.harness import Operation, Snapshot, count_states, crash_states, take_snapshot

from stoker.train.checkpoint import CheckpointFolder

pytestmark = pytest.mark.promise("P13")


@dataclass(frozen=True)
class Recording:
    """One save, operation by operation, and the checkpoints that may be found."""

    log: list[Operation]
    before: Snapshot
    whole: dict[int, dict[str, bytes]]
    is_best: bool

    def count(self, rng: np.random.Generator, count: int, *, after_return: bool = False) -> Counter[Any]:
        """What LATEST leads to; "torn" also where another law is broken."""
        return count_states(self.log, self.before, rng, self.judge, count=count, after_return=after_return)

    def judge(self, state: Snapshot) -> Any:
        return "torn" if self.is_torn(state) else lies_in(state, self.whole)

    def is_torn(self, state: Snapshot) -> bool:
        """Whether a pointer leads nowhere, BEST is behind LATEST, or a new folder has its index but not all else."""
        latest, best = (lies_in(state, self.whole, pointer) for pointer in ("LATEST", "BEST"))
        behind = self.is_best and latest == NEW and best != NEW
        new = self.whole[NEW]
        committed = any(name.endswith("checkpoint.json") and name in state.files for name in new)
        return "torn" in (latest, best) or behind or (committed and any(state.files.get(name) != new[name] for name in new))


def content(snapshot: Snapshot) -> dict[int, dict[str, bytes]]:
    """The files of each checkpoint by its step."""
    whole: dict[int, dict[str, bytes]] = {}
    for name, data in snapshot.files.items():
        if name.startswith("run/step-"):
            whole.setdefault(int(name.split("/")[1].removeprefix("step-")), {})[name] = data
    return whole


def record(folder: Path, kind: str, *, way: Any = CheckpointFolder._write, **options: Any) -> Recording:
    folder.mkdir(exist_ok=True)
    prepare(folder / "run", kind)
    before = take_snapshot(folder)
    with mock.patch.object(CheckpointFolder, "_write", way):
        log = record_save(folder / "run", kind, **options)
    return Recording(log, before, content(before) | content(take_snapshot(folder)), kind == "best")


@pytest.mark.parametrize("kind", KINDS)
def test_no_power_loss_tears_what_latest_and_best_name(quick_path: Path, rng: np.random.Generator, kind: str) -> None:
    recording = record(quick_path, kind)
    assert set(recording.count(rng, 3000)) == {None if kind == "first" else OLD, NEW}
    assert set(recording.count(rng, 1000, after_return=True)) == {NEW}


@pytest.mark.parametrize("kind", KINDS)
def test_after_any_power_loss_a_run_continues(quick_path: Path, rng: np.random.Generator, kind: str) -> None:
    recording = record(quick_path / "disk", kind)
    for i, state in enumerate(crash_states(recording.log, recording.before, rng, count=40)):
        state.write_to(quick_path / str(i))
        folder = quick_path / str(i) / "run"
        if folder.exists():
            assert found(folder) in (None if kind == "first" else OLD, NEW), state.label
            resume_training(folder)


# ---- negative controls: the replayer finds what a wrong order or a missing sync would do ----


@pytest.mark.parametrize("kind", KINDS)
def test_negative_control_without_file_sync_torn_checkpoints_are_found(
    quick_path: Path, rng: np.random.Generator, kind: str
) -> None:
    recording = record(quick_path, kind, skip=["sync"])
    assert recording.count(rng, 1500)["torn"] > 0
    assert recording.count(rng, 300, after_return=True)["torn"] > 0


@pytest.mark.parametrize("kind", KINDS)
def test_negative_control_without_folder_sync_lost_checkpoints_are_found(
    quick_path: Path, rng: np.random.Generator, kind: str
) -> None:
    after = record(quick_path, kind, skip=["sync_folder"]).count(rng, 500, after_return=True)
    assert after["torn"] > 0 or after[None] > 0


@pytest.mark.parametrize("wrong", [name_then_write, clean_then_name])
def test_negative_control_another_order_is_found_torn(quick_path: Path, rng: np.random.Generator, wrong: Any) -> None:
    assert record(quick_path, "replacing", way=wrong).count(rng, 3000)["torn"] > 0


@pytest.mark.slow
def test_negative_control_no_sync_can_be_left_out(quick_path: Path, rng: np.random.Generator) -> None:
    recording = record(quick_path, "best")
    needed = [i for i, operation in enumerate(recording.log) if operation.kind in ("sync", "sync_folder")]
    assert len(needed) == 10, "the new folder, two parts, their folder; index, BEST and LATEST, each with its folder"
    missed = []
    for i in needed:
        left_out = replace(recording, log=recording.log[:i] + recording.log[i + 1 :])
        during, after = left_out.count(rng, 4000), left_out.count(rng, 500, after_return=True)
        if not during["torn"] and set(after) == {NEW}:
            missed.append(str(recording.log[i]))
    assert not missed

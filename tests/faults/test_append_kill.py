"""An append or a compaction that is killed, refused by the disk or hit by a power loss: the store is the old or the new, never torn."""

from __future__ import annotations

import contextlib
import errno
import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults.shapes import SHAPES, content, make_source, pack_shape, small_limits
from tests.faults.test_pack_kill import write_in_place
from tests.harness import FaultyFiles, Operation, Snapshot, Zygote, count_states, take_snapshot

import stoker
from stoker import _disk, verify
from stoker.errors import DiskError, StokerError

pytestmark = pytest.mark.promise("P26")

VERBS = ("append", "append again", "compact")


def work(verb: str, source: str | Path, store: str | Path) -> None:
    """Change a store, with limits at which no thread runs ahead."""
    with small_limits(SHAPES["straight"]):
        if verb == "compact":
            stoker.compact(store)
        else:
            stoker.append(store, source)


def work_and_die(verb: str, source: str, store: str, kill_at: int) -> str:
    with FaultyFiles(kill_at=kill_at):
        work(verb, source, store)
    return "alive"


def work_in_place_and_die(verb: str, source: str, store: str, kill_at: int) -> str:
    with mock.patch.object(_disk, "write_file", write_in_place):
        return work_and_die(verb, source, store, kill_at)


def files(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in content(folder).items() if data != b"a folder"}


@dataclass(frozen=True)
class Trial:
    """A change of a store, the store before it, and the one behind it."""

    verb: str
    folder: Path
    source: Path
    before: Snapshot
    old: dict[str, bytes]
    new: dict[str, bytes]
    log: list[Operation]

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def reset(self) -> None:
        _disk.remove_folder(self.store)
        self.before.write_to(self.store)

    def found(self) -> str:
        """Which store lies there; every byte of it was read."""
        verify(self.store)
        return "old" if (self.store / "manifest.json").read_bytes() == self.old["manifest.json"] else "new"

    def finish(self) -> None:
        """Do it again if it was not done, and find nothing but the new store."""
        if self.found() == "old" or self.verb == "compact":
            work(self.verb, self.source, self.store)
        assert files(self.store) == self.new


def prepare(folder: Path, verb: str) -> Trial:
    store = folder / "store"
    pack_shape("straight", make_source("straight", folder / "first"), store)
    rng = np.random.default_rng(3)
    sources = []
    for number in range(3):
        rows = 900
        table = {"id": rng.integers(20, 40, rows), "t": np.arange(rows) + 10_000 * (number + 1), "x": rng.normal(size=rows)}
        sources.append(folder / f"{number}.parquet")
        pq.write_table(pa.table(table), sources[-1])
    for source in sources[: {"append": 0, "append again": 1, "compact": 2}[verb]]:
        work("append", source, store)
    old, before = files(store), take_snapshot(store)
    with FaultyFiles(record=True) as disk:
        work(verb, sources[2], store)
    return Trial(verb, folder, sources[2], before, old, files(store), disk.log)


@pytest.mark.parametrize(
    ("verb", "every"), [(verb, 5) for verb in VERBS] + [pytest.param(verb, 1, marks=pytest.mark.slow) for verb in VERBS]
)
def test_killed_at_any_operation_the_store_is_the_old_or_the_new(
    pack_zygote: Zygote, quick_path: Path, verb: str, every: int
) -> None:
    trial = prepare(quick_path, verb)
    seen: Counter[str] = Counter()
    last = len(trial.log) - 1
    commit = max(i for i, one in enumerate(trial.log) if one.target == trial.store / "manifest.json")
    for kill_at in sorted({*range(0, last, every), commit, commit + 1, last}):
        trial.reset()
        outcome = pack_zygote.run(work_and_die, verb=verb, source=trial.source, store=trial.store, kill_at=kill_at)
        assert outcome.signal == signal.SIGKILL, f"operation {kill_at}: {outcome}"
        seen[trial.found()] += 1
        trial.finish()
    assert set(seen) == {"old", "new"}


def test_negative_control_a_manifest_written_in_place_is_found_torn(pack_zygote: Zygote, quick_path: Path) -> None:
    trial = prepare(quick_path, "append again")
    torn = 0
    for kill_at in range(len(trial.log) - 16, len(trial.log)):
        trial.reset()
        pack_zygote.run(work_in_place_and_die, verb=trial.verb, source=trial.source, store=trial.store, kill_at=kill_at)
        try:
            trial.found()
        except StokerError:
            torn += 1
    assert torn > 0


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("code", [errno.ENOSPC, pytest.param(errno.EIO, marks=pytest.mark.slow)])
def test_a_disk_that_refuses_leaves_the_store_as_it_was(quick_path: Path, verb: str, code: int) -> None:
    trial = prepare(quick_path, verb)
    seen: Counter[str] = Counter()
    every = 4 if code == errno.ENOSPC else 1
    for k in range(0, len(trial.log), every):
        trial.reset()
        with FaultyFiles(error_at=(k, code)), contextlib.suppress(DiskError):
            work(verb, trial.source, trial.store)
        state = trial.found()
        seen[state] += 1
        if state == "old":
            assert files(trial.store) == trial.old, f"operation {k} {trial.log[k]} left something behind"
    assert seen["old"] > len(trial.log) // every // 2


def states(trial: Trial, rng: np.random.Generator, log: list[Operation], count: int, **more: Any) -> Counter[str]:
    """Which store is there behind power losses, by its bytes and not by the library that is under test."""

    def judge(state: Snapshot) -> str:
        label = "torn"
        for name, expected in (("old", trial.old), ("new", trial.new)):
            listed = {file: data for file, data in expected.items() if file != "parts.jsonl"}
            if all(state.files.get(file) == data for file, data in listed.items()):
                label = name if state.files.get("parts.jsonl", b"").startswith(expected.get("parts.jsonl", b"")) else "torn"
        return label

    return count_states(log, trial.before, rng, judge, count=count, **more)


@pytest.mark.parametrize("verb", VERBS)
def test_no_power_loss_tears_a_store_and_none_undoes_what_has_returned(
    quick_path: Path, rng: np.random.Generator, verb: str
) -> None:
    trial = prepare(quick_path, verb)
    assert set(states(trial, rng, trial.log, 600)) == {"old", "new"}
    assert set(states(trial, rng, trial.log, 200, after_return=True)) == {"new"}


def test_negative_control_without_the_sync_of_the_list_a_power_loss_tears_the_store(
    quick_path: Path, rng: np.random.Generator
) -> None:
    trial = prepare(quick_path, "append again")
    behind = [i for i, one in enumerate(trial.log) if one.kind == "sync" and one.path.name == "parts.jsonl.tmp"]
    log = [one for i, one in enumerate(trial.log) if i != behind[-1]]
    assert states(trial, rng, log, 3000)["torn"] > 0


def test_after_a_compaction_that_was_killed_while_it_cleaned_up_a_store_can_be_appended_to(
    pack_zygote: Zygote, quick_path: Path
) -> None:
    trial = prepare(quick_path, "compact")
    commit = max(i for i, one in enumerate(trial.log) if one.target == trial.store / "manifest.json")
    for kill_at in range(commit + 3, len(trial.log), 3):
        trial.reset()
        pack_zygote.run(work_and_die, verb="compact", source=trial.source, store=trial.store, kill_at=kill_at)
        assert stoker.inspect(stoker.append(trial.store, trial.source)).num_appends == 1
        assert sorted(path.name for path in (trial.store / "parts").iterdir()) == ["000002"]
        verify(trial.store)

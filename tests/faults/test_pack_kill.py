"""A pack that is killed: there is no store, the old one or the new one, and the same pack run again goes on to the same bytes."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pytest
from tests.faults.shapes import (
    SHAPES,
    counted_blocks,
    make_source,
    moments_behind,
    pack_and_die,
    pack_shape,
    record_operations,
    whole_content,
)
from tests.harness import FaultyFiles, Operation, Zygote, flip_byte, take_snapshot

from stoker import _disk, verify
from stoker._disk import AppendFile
from stoker.errors import ManifestError, StoreNotFoundError
from stoker.store.pack import packer
from stoker.store.shards import ColumnFile


@dataclass(frozen=True)
class Trial:
    """A pack to be killed, and what an uninterrupted one makes."""

    zygote: Zygote
    name: str
    folder: Path
    source: Path
    expected: dict[str, bytes]
    num_blocks: int
    log: list[Operation]

    @property
    def num_operations(self) -> int:
        return len(self.log)

    @property
    def journals(self) -> list[int]:
        """The moments right behind each journal."""
        return moments_behind(self.log, "journal")

    @property
    def all_sealed(self) -> int:
        """The moment when all shards have their names, and no manifest names them."""
        manifest = moments_behind(self.log, "manifest.json")[0]
        return max(i for i in range(manifest) if self.log[i].kind == "sync_folder")

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def kill(self, kill_at: int) -> None:
        """Pack in a child that dies instead of operation `kill_at`."""
        outcome = self.zygote.run(pack_and_die, name=self.name, source=self.source, store=self.store, kill_at=kill_at)
        assert outcome.signal == signal.SIGKILL, f"operation {kill_at}: {outcome}"

    def restart(self) -> int:
        """Pack again; the number of chunks that were taken in once more.

        A killed pack resumes without being allowed to replace; it must be allowed only where a whole store and no journal is left.
        """
        replace = (self.store / "manifest.json").exists() and not (self.store / "work" / "journal").exists()
        with counted_blocks() as count:
            pack_shape(self.name, self.source, self.store, replace=replace)
        assert whole_content(self.store) == self.expected
        return count[0]


def prepare(zygote: Zygote, name: str, folder: Path) -> Trial:
    source = make_source(name, folder / "source")
    with counted_blocks() as count:
        pack_shape(name, source, folder / "store")
    expected = whole_content(folder / "store")
    _disk.remove_folder(folder / "store")
    return Trial(zygote, name, folder, source, expected, count[0], record_operations(name, source, folder / "store"))


def found(store: Path, old: str | None = None) -> str:
    """Which store lies there, every byte of it read; a torn one raises."""
    try:
        digest = verify(store).digest
    except StoreNotFoundError:
        return "none"
    return "old" if digest == old else "new"


def kill_each(trial: Trial, moments: Iterable[int]) -> Counter[tuple[str, int]]:
    """Kill a pack at each of the moments, each time from nothing; what was found, and how much was read again."""
    seen: Counter[tuple[str, int]] = Counter()
    for kill_at in moments:
        trial.kill(kill_at)
        state = found(trial.store)
        seen[state, trial.restart()] += 1
        _disk.remove_folder(trial.store)
    return seen


@pytest.mark.promise("P1")
@pytest.mark.parametrize(
    ("name", "every"),
    [("straight", 2), ("grouped", 21), *(pytest.param(name, 1, marks=pytest.mark.slow) for name in ("straight", "grouped"))],
)
def test_killed_at_any_operation_there_is_no_store_or_a_whole_one_and_the_pack_continues(
    pack_zygote: Zygote, quick_path: Path, name: str, every: int
) -> None:
    trial = prepare(pack_zygote, name, quick_path)
    last = trial.num_operations - 1
    seen = kill_each(trial, sorted({*range(0, last, every), *trial.journals, trial.all_sealed, last}))
    assert {state for state, _ in seen} == {"none", "new"}
    read_again = {blocks for _, blocks in seen}
    assert read_again >= {0, trial.num_blocks}
    assert any(0 < blocks < trial.num_blocks for blocks in read_again), "no restart went on in the middle of the reading"


@pytest.mark.promise("P1")
@pytest.mark.parametrize(
    ("name", "every"),
    [("straight", 3), pytest.param("straight", 1, marks=pytest.mark.slow), pytest.param("grouped", 1, marks=pytest.mark.slow)],
)
def test_killed_at_any_operation_a_store_that_is_replaced_is_the_old_or_the_new(
    pack_zygote: Zygote, quick_path: Path, name: str, every: int
) -> None:
    trial = prepare(pack_zygote, name, quick_path)
    pack_shape("grouped", make_source("grouped", quick_path / "other", seed=9), quick_path / "old")
    old, digest = take_snapshot(quick_path / "old"), verify(quick_path / "old").digest
    seen: Counter[str] = Counter()
    kill_at, alive = 0, False
    while not alive:
        old.write_to(trial.store)
        outcome = pack_zygote.run(pack_and_die, name=trial.name, source=trial.source, store=trial.store, kill_at=kill_at)
        alive = outcome.exit == 0
        assert alive or outcome.signal == signal.SIGKILL, outcome
        seen[found(trial.store, digest)] += 1
        trial.restart()
        _disk.remove_folder(trial.store)
        kill_at += every
    assert seen["old"] > trial.num_operations // every // 2
    assert set(seen) == {"old", "new"}


@pytest.mark.promise("P3")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ("categories", "sort and ffill") else pytest.mark.slow)
        for name in SHAPES
        if name not in ("straight", "grouped", "a statement")  # a statement has no journal
    ],
)
def test_killed_behind_any_journal_a_pack_continues_from_there(pack_zygote: Zygote, quick_path: Path, name: str) -> None:
    trial = prepare(pack_zygote, name, quick_path)
    seen = kill_each(trial, trial.journals)
    assert {state for state, _ in seen} == {"none"}
    assert all(blocks < trial.num_blocks for _, blocks in seen), "a restart began anew"


@pytest.mark.promise("P1")
@pytest.mark.promise("P25")
@pytest.mark.slow
@pytest.mark.timeout(1200)  # each of up to hundreds of operations is one process more, which takes its time on a busy machine
@pytest.mark.parametrize("name", [name for name in SHAPES if name not in ("straight", "grouped")])
def test_killed_at_any_operation_every_shape_continues(pack_zygote: Zygote, quick_path: Path, name: str) -> None:
    trial = prepare(pack_zygote, name, quick_path)
    assert {state for state, _ in kill_each(trial, range(trial.num_operations))} == {"none", "new"}


def pack_and_die_writing(name: str, source: str, store: str, kill_at: int) -> None:
    """Die right behind operation `kill_at - 1`, of which only half was written if it was a write."""
    with FaultyFiles(short_write_at=kill_at - 1, kill_at=kill_at):
        pack_shape(name, source, store)


@pytest.mark.promise("P1")
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_within_any_write_a_pack_continues(pack_zygote: Zygote, quick_path: Path, every: int) -> None:
    trial = prepare(pack_zygote, "straight", quick_path)
    for kill_at in range(1, trial.num_operations, every):
        pack_zygote.run(pack_and_die_writing, name=trial.name, source=trial.source, store=trial.store, kill_at=kill_at)
        assert found(trial.store) in ("none", "new")
        trial.restart()
        _disk.remove_folder(trial.store)


# ---- what a killed pack left is not believed ----


def test_a_changed_work_file_is_found_and_the_pack_starts_over(pack_zygote: Zygote, quick_path: Path) -> None:
    trial = prepare(pack_zygote, "straight", quick_path)
    trial.kill(trial.journals[-1])
    flip_byte(trial.store / "work" / "run0.c1")
    assert trial.restart() == trial.num_blocks


def test_a_changed_shard_that_was_just_sealed_is_found_and_the_pack_starts_over(pack_zygote: Zygote, quick_path: Path) -> None:
    trial = prepare(pack_zygote, "straight", quick_path)
    trial.kill(trial.all_sealed)
    flip_byte(sorted(trial.store.glob("*.npy"))[0])
    assert trial.restart() == trial.num_blocks


@pytest.mark.promise("P3", control=True)
def test_negative_control_a_work_file_that_is_believed_makes_another_store(pack_zygote: Zygote, quick_path: Path) -> None:
    trial = prepare(pack_zygote, "straight", quick_path)
    trial.kill(trial.journals[-1])
    flip_byte(trial.store / "work" / "run0.c1")
    with mock.patch.object(ColumnFile, "mark", return_value=mock.ANY), pytest.raises(AssertionError):
        trial.restart()


# ---- negative controls: the tests above can fail ----


def write_in_place(path: Path, data: bytes, **_: Any) -> None:
    """The writing of a file that does not keep the law."""
    _disk.remove_file(path)
    file = AppendFile.create(path)
    file.append(data[: len(data) // 2])
    file.append(data[len(data) // 2 :])
    file.close()


def pack_in_place_and_die(name: str, source: str, store: str, kill_at: int) -> None:
    with mock.patch.object(_disk, "write_file", write_in_place):
        pack_and_die(name, source, store, kill_at)


@pytest.mark.promise("P1", control=True)
def test_negative_control_a_manifest_written_in_place_is_found_torn(pack_zygote: Zygote, quick_path: Path) -> None:
    trial = prepare(pack_zygote, "straight", quick_path)
    torn = 0
    for kill_at in range(trial.all_sealed, trial.num_operations):
        pack_zygote.run(pack_in_place_and_die, name=trial.name, source=trial.source, store=trial.store, kill_at=kill_at)
        try:
            found(trial.store)
        except ManifestError:
            torn += 1
        _disk.remove_folder(trial.store)
    assert torn > 0


@pytest.mark.promise("P3", control=True)
def test_negative_control_a_journal_that_lies_makes_another_store(pack_zygote: Zygote, quick_path: Path) -> None:
    trial = prepare(pack_zygote, "sort", quick_path)
    trial.kill(trial.journals[0])
    load = packer.load_journal

    def lie(folder: Path, fingerprint: str) -> Any:
        journal = load(folder, fingerprint)
        return msgspec.structs.replace(journal, row=0, position=0)

    with mock.patch.object(packer, "load_journal", lie), pytest.raises(AssertionError):
        trial.restart()


# ---- random moments, a real file system, threads that run ahead ----


def pack_ahead(name: str, source: str, store: str) -> None:
    pack_shape(name, source, store, in_step=False)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_random_kills_on_a_real_file_system(pack_zygote: Zygote, tmp_path: Path, seed: int) -> None:
    kill_at_random(pack_zygote, tmp_path, seed, kills=1000)


def kill_at_random(zygote: Zygote, folder: Path, seed: int, *, kills: int) -> None:
    """Kill packs after random times, restart them over what they left, and now and then see one end."""
    rng = np.random.default_rng(seed)
    names = ("straight", "grouped", "categories")
    for name in names:
        (folder / name).mkdir()
    trials = [prepare(zygote, name, folder / name) for name in names]
    seconds = []
    for i in range(3):
        start = time.monotonic()
        zygote.run(pack_ahead, name="categories", source=trials[2].source, store=folder / f"timed{i}").check()
        seconds.append(time.monotonic() - start)
    killed, ended = 0, 0
    while killed < kills:
        trial = trials[int(rng.integers(len(trials)))]
        case = zygote.start(pack_ahead, name=trial.name, source=trial.source, store=trial.store)
        time.sleep(rng.uniform(0, min(seconds)))
        case.kill(signal.SIGKILL)
        outcome = case.wait()
        assert outcome.exit == 0 or outcome.signal == signal.SIGKILL, outcome
        killed += outcome.exit is None
        if found(trial.store) == "new":
            ended += 1
            trial.restart()
            _disk.remove_folder(trial.store)
    for trial in trials:
        trial.restart()
    print(f"{killed} killed, {ended} came to an end")

"""Shapes of packs: small inputs that each take another way through a pack, and the limits that make a small pack take it.

With `small_limits` a few thousand rows fill many chunks, runs, merges and journals, as many millions do otherwise.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tests.harness import FaultyFiles, Operation

from stoker import Store, Time, _disk, pack, verify
from stoker.store import PackOptions
from stoker.store import manifest as manifests
from stoker.store.formats import csv
from stoker.store.manifest import MANIFEST_NAME
from stoker.store.pack import merge as merges
from stoker.store.pack import packer as states
from stoker.store.pack.blocks import Shaper
from stoker.store.pack.sorted_runs import BackgroundWriter


@dataclass(frozen=True)
class Shape:
    """One way through a pack: its input, its options, and how small its parts are."""

    make: Callable[[Path, np.random.Generator], None]
    """Write the source files into a folder."""
    options: dict[str, Any] = field(default_factory=dict)
    run_bytes: int = 100 << 10
    chunk_bytes: int = 12 << 10
    journal_bytes: int = 32 << 10
    fan_in: int = 2
    merge_bytes: int = 16 << 10


def _straight(folder: Path, rng: np.random.Generator) -> None:
    """Rows in order: one run, written as it is read."""
    rows = 3000
    table = pa.table({"id": np.arange(rows) // 100, "t": np.arange(rows), "x": rng.normal(size=rows)})
    pq.write_table(table, folder / "a.parquet")


def _scattered(folder: Path, rng: np.random.Generator, rows: int = 4000, **more: Any) -> None:
    """Keys far apart, in two files: several runs and two rounds of merges."""
    for i, name in enumerate(("a", "b")):
        table = {"id": rng.integers(0, 40, rows // 2), "t": np.arange(rows // 2) + i * rows, "x": rng.normal(size=rows // 2)}
        table |= {column: make(rng, rows // 2) for column, make in more.items()}
        pq.write_table(pa.table(table), folder / f"{name}.parquet")


def _few_keys(folder: Path, rng: np.random.Generator) -> None:
    """Series that are longer than what a merge holds at a time."""
    rows = 4000
    table = pa.table({"id": rng.integers(0, 2, rows), "t": np.arange(rows), "x": rng.normal(size=rows)})
    pq.write_table(table, folder / "a.parquet")


def _categories(folder: Path, rng: np.random.Generator) -> None:
    _scattered(folder, rng, mood=lambda rng, rows: [None if n > 180 else f"mood {n}" for n in rng.integers(0, 200, rows).tolist()])


def _text_keys(folder: Path, rng: np.random.Generator) -> None:
    rows = 4000
    keys = [f"Å{n}" if n % 3 else f"z{n}" for n in rng.integers(0, 40, rows).tolist()]
    pq.write_table(pa.table({"id": keys, "t": np.arange(rows), "x": rng.normal(size=rows)}), folder / "a.parquet")


def _wide(folder: Path, rng: np.random.Generator) -> None:
    for name in "ab":
        lines = [f"{t},{a:.6f},{b:.6f}" for t, (a, b) in enumerate(rng.normal(size=(9000, 2)).tolist())]
        (folder / f"{name}.csv").write_text("\n".join(["t,left,right", *lines]) + "\n")


def _gaps(folder: Path, rng: np.random.Generator) -> None:
    _scattered(folder, rng, y=lambda rng, rows: pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.3))


def _unsorted(folder: Path, rng: np.random.Generator) -> None:
    rows = 4000
    y = pa.array(rng.normal(size=rows), mask=rng.random(rows) < 0.3)
    table = pa.table({"id": rng.integers(0, 5, rows), "t": rng.integers(0, 900, rows), "x": np.arange(rows), "y": y})
    pq.write_table(table, folder / "a.parquet")


def _lists(folder: Path, rng: np.random.Generator) -> None:
    rows = 400
    values = [rng.normal(size=n).tolist() for n in rng.integers(0, 30, rows).tolist()]
    table = {"id": rng.permutation(rows), "x": values, "label": rng.integers(0, 9, rows), "note": [f"n{i}" for i in range(rows)]}
    pq.write_table(pa.table(table), folder / "a.parquet")


def _hourly(folder: Path, rng: np.random.Generator) -> None:
    """Hours in any order, with gaps and repeated times."""
    rows = 3000
    times = np.datetime64("2020-01-01", "s") + rng.integers(0, 900, rows) * np.timedelta64(3600, "s")
    pq.write_table(pa.table({"id": rng.integers(0, 5, rows), "t": times, "x": rng.normal(size=rows)}), folder / "a.parquet")


def _late_float(folder: Path, rng: np.random.Generator) -> None:
    """Whole numbers for long, then one that is not: types are settled by a second reading."""
    rows = 20_000
    keys = rng.integers(0, 20, rows).tolist()
    lines = [f"{key},{t},{t if t < rows - 9000 else t + 0.5}" for t, key in enumerate(keys)]
    (folder / "a.csv").write_text("\n".join(["id,t,x", *lines]) + "\n")


_GROUPED = {"series": "id", "time": "t"}

SHAPES = {
    "straight": Shape(_straight, _GROUPED),
    "grouped": Shape(_scattered, _GROUPED),
    "few keys": Shape(_few_keys, _GROUPED),
    "categories": Shape(_categories, _GROUPED),
    "text keys": Shape(_text_keys, _GROUPED, merge_bytes=64 << 10),
    "wide with time": Shape(_wide, {"wide": True, "time": "t"}, journal_bytes=100 << 10),
    "ffill": Shape(_gaps, {**_GROUPED, "missing": "ffill"}),
    "sort": Shape(_unsorted, {**_GROUPED, "sort": True}),
    "sort and ffill": Shape(_unsorted, {**_GROUPED, "sort": True, "missing": "ffill"}),
    "rules": Shape(_hourly, {**_GROUPED, "time": Time("t", duplicates="last", freq="1h"), "sort": True}),
    "lists": Shape(_lists, {"series": "id"}, run_bytes=12 << 10, chunk_bytes=6 << 10, journal_bytes=10 << 10),
    "lists in rows": Shape(_lists, {}, chunk_bytes=6 << 10, journal_bytes=10 << 10),
    "a statement": Shape(_categories, {**_GROUPED, "sql": "SELECT *, x > 0 AS up FROM source WHERE x > -1"}),
    "late float": Shape(_late_float, _GROUPED, run_bytes=1 << 20, journal_bytes=200 << 10, merge_bytes=64 << 10),
}


@contextlib.contextmanager
def small_limits(shape: Shape, *, in_step: bool = True) -> Iterator[None]:
    """Make chunks, runs and journals small. `in_step` lets no thread run ahead, so operation k is the same on every run."""

    def submit(self: BackgroundWriter, task: Callable[[], None], num_bytes: int = 0) -> None:
        submit_ahead(self, task, num_bytes)
        if in_step:
            self.drain()

    def merge(*arguments: Any, **named: Any) -> None:
        merges.merge_runs(*arguments, **{**named, "memory_bytes": shape.merge_bytes})

    submit_ahead = BackgroundWriter.submit
    with (
        mock.patch.object(PackOptions, "run_bytes", shape.run_bytes),
        mock.patch.object(PackOptions, "chunk_bytes", shape.chunk_bytes),
        mock.patch.object(states, "JOURNAL_BYTES", shape.journal_bytes),
        mock.patch.object(states, "FAN_IN", shape.fan_in),
        mock.patch.object(states, "merge_runs", merge),
        mock.patch.object(csv, "SAMPLE_BYTES", 1 << 10),
        mock.patch.object(BackgroundWriter, "submit", submit),
    ):
        yield


def make_source(name: str, folder: Path, seed: int = 1) -> Path:
    """Write the input of a shape into a new folder."""
    folder.mkdir()
    SHAPES[name].make(folder, np.random.default_rng(seed))
    return folder


def pack_shape(name: str, source: Path | str, store: Path | str, *, in_step: bool = True, replace: bool = True) -> Store:
    """Pack the input of a shape, over a store that is there unless told otherwise."""
    shape = SHAPES[name]
    with small_limits(shape, in_step=in_step):
        return pack(source, store, replace=replace, **shape.options)


def pack_and_die(name: str, source: str, store: str, kill_at: int) -> str:
    """Pack, and be killed instead of operation `kill_at`; for a child process."""
    with FaultyFiles(kill_at=kill_at):
        pack_shape(name, source, store)
    return "alive"


@contextlib.contextmanager
def counted_blocks() -> Iterator[list[int]]:
    """Count the chunks that a pack takes in: the one number of the list grows."""
    count = [0]
    shape_block = Shaper.block

    def block(self: Shaper, *arguments: Any) -> Any:
        count[0] += 1
        return shape_block(self, *arguments)

    with mock.patch.object(Shaper, "block", block):
        yield count


def content(store: Path) -> dict[str, bytes]:
    """Every file that belongs to a store, and every other that lies in its folder, by name; the lock alone is left out."""
    found = {path.relative_to(store).as_posix(): path for path in sorted(store.rglob("*")) if path.name != ".lock"}
    return {name: b"a folder" if path.is_dir() else path.read_bytes() for name, path in found.items()}


def whole_content(store: Path) -> dict[str, bytes]:
    """The content of a store that must be whole and alone in its folder."""
    verify(store)
    found = content(store)
    manifest = manifests.load(found[MANIFEST_NAME], str(store))
    assert set(found) == {MANIFEST_NAME, *(shard.file for shard in manifests.shards(manifest))}, "debris"
    return found


def record_operations(name: str, source: Path, store: Path) -> list[Operation]:
    """The operations of a pack, which is then removed."""
    with FaultyFiles(record=True) as disk:
        pack_shape(name, source, store)
    _disk.remove_folder(store)
    return disk.log


def moments_behind(log: list[Operation], name: str) -> list[int]:
    """The numbers of the operations that come right after a file with this name was put in its place."""
    return [i + 1 for i, operation in enumerate(log) if operation.target is not None and operation.target.name == name]

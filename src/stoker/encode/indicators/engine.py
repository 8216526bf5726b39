"""Compiling: a spec becomes a program, in the arithmetic that it asks for."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stoker import _disk
from stoker._types import Array
from stoker.encode.indicators import exact, sentio
from stoker.encode.indicators.bars import Bars, FeatureFrame, read_bars
from stoker.encode.indicators.exact import PERIOD, ExactAssembly
from stoker.encode.indicators.program import BAR, Program, link
from stoker.encode.indicators.sentio import SentioAssembly
from stoker.encode.indicators.spec import Spec, parse_spec
from stoker.errors import BadValueError, OptionError, StoreDamagedError
from stoker.store import manifest as manifests
from stoker.store.manifest import BLOCK_BYTES, ColumnEntry, Manifest, NonFinite, Shard
from stoker.store.pack.options import parse_threads
from stoker.store.shards import ColumnFile, NonFiniteCount, map_shard
from stoker.store.store import WORK_NAME, Store, open_store
from stoker.store.writer import make_work, replace_store


def compile_spec(spec: Spec) -> Program:
    """The program of all features of a spec."""
    if spec.compat == "sentio":
        theirs = SentioAssembly()
        outputs = [feature.operator.sentio(theirs, feature.settings) for feature in spec.features]
        return link(theirs, outputs, "sentio", emit_from=spec.emit_from, pad=spec.pad)
    ours = ExactAssembly()
    outputs = [feature.operator.exact(ours, feature.settings) for feature in spec.features]
    return link(ours, outputs, "exact", emit_from=0, pad=0.0)


# The engine: a program and the state it has come to. Batch and stream are two ways to move it on.
#
# The state is all that the past leaves behind: it has a fixed size, and an engine that is given it goes on with the same bits.


BLOCK = 512
"""Bars that are computed together: their columns stay in the second cache (benchmarks/bench_indicators.py)."""
NO_STARTS = np.zeros(0, dtype=np.int64)


class Engine:
    """Computes rows of features. Not to be used by two threads at once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # A block is at least as long as the history, so that moving it costs at most one copy a bar.
        capacity = program.history + max(BLOCK, program.history)
        self._columns = np.zeros((program.num_live + len(program.constants), capacity), dtype=program.dtype)
        self._columns[program.num_live :] = program.constants[:, None]
        self._sums = np.zeros((program.num_sum_rows, capacity))
        self._lanes = program.lanes.astype(program.dtype)
        self._registers = np.zeros(program.num_registers)
        self._kernel = exact.advance if program.arithmetic == "exact" else sentio.advance
        # Put together once: a stream passes them with each bar.
        tables = (program.instructions, program.numbers, program.runs)
        self._before = (*tables, self._columns, self._sums, self._lanes, self._registers)
        self._behind = (program.history, program.num_live, PERIOD, program.emit_from, program.pad)

    @property
    def num_bars(self) -> int:
        """Bars of the current series so far."""
        return int(self._registers[0])

    def reset(self) -> None:
        """Begin another series."""
        self._registers[:] = 0
        self._lanes[:2] = 0

    def advance(self, sources: Array, out: Array, starts: Array = NO_STARTS) -> None:
        """Compute the rows of `out` (float32 [bars, features]) from `sources` (float64 [columns, bars]).

        Another series begins at each bar of `starts` (int64, rising). Both arrays are contiguous.
        """
        self._kernel(*self._before, starts, sources, out, *self._behind)

    def state(self) -> dict[str, Array]:
        """A copy of all that the past has left behind."""
        return {
            "columns": self._columns.copy(),
            "sums": self._sums.copy(),
            "lanes": self._lanes.copy(),
            "registers": self._registers.copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state of an engine with the same program."""
        own = {"columns": self._columns, "sums": self._sums, "lanes": self._lanes, "registers": self._registers}
        for name, target in own.items():
            found = np.asarray(state[name]) if name in state else None
            if found is None or found.shape != target.shape or found.dtype != target.dtype:
                shape = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
                raise OptionError(
                    f"the state is not one of this spec: {name} is {shape}, expected {target.dtype} of shape {target.shape}."
                )
        place = float(np.asarray(state["registers"])[1])
        if place != 0 and not self.program.history <= place <= self._columns.shape[1]:
            raise OptionError(f"the state is damaged: its place is {place:g}, beyond the {self._columns.shape[1]} of its columns.")
        for name, target in own.items():
            target[...] = state[name]


# Batch: the features of whole series, some series at a time in each thread.
#
# A thread begins its engine anew with each series, so nothing crosses a boundary. Bars go to the kernel in pieces: beside the
# result, memory does not grow with their number.

Share = tuple[int, int]
"""Rows from the first to behind the last, with the begins of series at both ends."""

PIECE = 1 << 14
"""Bars that go to the kernel at a time."""
SHARE = 1 << 16
"""Bars that are work for a thread; a series that has more stays whole."""


def features(
    bars: Any, spec: Any, *, series: str | None = None, compat: str | None = None, threads: int | None = None
) -> FeatureFrame:
    """The features of a spec for all bars: float32 [bars, features], and which of them are ready.

    `bars` is a DataFrame, an Arrow table, a mapping of arrays or a store, with the columns open, high, low, close and volume as
    far as the spec needs them. `series` names the column that tells series apart (a store knows its own); the rows of a series
    are in the order of time. `spec` is a mapping, JSON text or a path. `compat="sentio"` gives what Sentio's C++ builder gave,
    bit for bit. By default there are as many threads as cores.
    """
    wanted = parse_spec(spec, compat=compat)
    table = read_bars(bars, wanted, series=series)
    values = np.empty((table.num_rows, len(wanted.features)), dtype=np.float32)
    program = compile_spec(wanted)

    def compute(share: Share) -> None:
        engine = Engine(program)
        for start in range(*share, PIECE):
            stop = min(start + PIECE, share[1])
            if table.order is None:
                advance(engine, table, start, stop, values[start:stop])
            else:
                rows = np.empty((stop - start, values.shape[1]), dtype=np.float32)
                advance(engine, table, start, stop, rows)
                values[table.order[start:stop]] = rows

    in_threads(compute, shares(table.offsets), threads=threads)
    return FeatureFrame(values=values, spec=wanted, offsets=table.offsets, order=table.order)


def advance(engine: Engine, bars: Bars, start: int, stop: int, out: Array) -> None:
    """Move an engine on over some rows of the bars, counted series by series; it begins anew where a series does."""
    rows = slice(start, stop) if bars.order is None else bars.order[start:stop]
    sources = np.empty((len(engine.program.sources), stop - start))
    for i, name in enumerate(engine.program.sources):
        sources[i] = bars.columns[name][rows]
    first, last = np.searchsorted(bars.offsets, [start, stop])
    engine.advance(sources, out, np.unique(bars.offsets[first:last]) - start)


def shares(offsets: Array) -> Iterator[Share]:
    """Cut all rows into work for threads, at the begins of series."""
    start, end = 0, int(offsets[-1])
    while start < end:
        stop = int(offsets[np.searchsorted(offsets, min(start + SHARE, end))])
        yield start, stop
        start = stop


def in_threads(work: Callable[[Share], None], tasks: Iterator[Share], *, threads: int | None) -> None:
    """Do all tasks, some at a time; the first error ends them."""
    threads = parse_threads(threads)
    listed = list(tasks)
    count = min(len(listed), threads)
    if count <= 1:
        for task in listed:
            work(task)
        return
    pool = ThreadPoolExecutor(count, thread_name_prefix="stoker-features")
    try:
        for _ in pool.map(work, listed):
            pass
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


# The stream: features one bar at a time, bit for bit those of the batch, as both move the same engine on.
#
# `state` and `restore` carry a stream from one process to another: what is trained on a batch goes live without a new history.


class FeatureStream:
    """The features of one series, as its bars come in. `spec` and `compat` are those of `features`."""

    def __init__(self, spec: Any, *, compat: str | None = None) -> None:
        self.spec = parse_spec(spec, compat=compat)
        self._engine = Engine(compile_spec(self.spec))
        self._columns = self._engine.program.sources
        self._places = [BAR.index(name) for name in self._columns]
        self._bar = np.empty((len(self._columns), 1))
        self._shape = (1, len(self.spec.features))
        self._last = np.full(self._shape, np.nan, dtype=np.float32)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features."""
        return self.spec.names

    @property
    def emit_from(self) -> int:
        """The first bar at which all features are ready, if no value is missing."""
        return self.spec.emit_from

    @property
    def num_bars(self) -> int:
        """Bars so far."""
        return self._engine.num_bars

    @property
    def bar(self) -> dict[str, float]:
        """The last bar that was pushed, in the columns that the spec needs; NaN is missing."""
        return dict(zip(self._columns, self._bar[:, 0].tolist(), strict=True))

    @property
    def ready(self) -> Array:
        """Which features of the last bar mean something; bool [features]."""
        if self.spec.compat is None:
            return np.asarray(np.isfinite(self._last[0]))
        first = np.array([feature.first for feature in self.spec.features])
        return np.asarray(self.num_bars > np.maximum(first, self.emit_from))

    def push(self, bar: Any) -> Array:
        """The features at a new bar, float32 [features].

        A bar is a mapping (or a record, or a row of a table) with the columns that the spec needs, or the five numbers open,
        high, low, close, volume. None and NaN are missing.
        """
        target = self._bar
        try:
            if type(bar) is dict or hasattr(bar, "keys") or getattr(getattr(bar, "dtype", None), "names", None):
                for i, name in enumerate(self._columns):
                    target[i, 0] = bar[name]
            elif len(bar) == len(BAR):
                for i, place in enumerate(self._places):
                    target[i, 0] = bar[place]
            else:
                raise OptionError(f"a bar is a mapping or {len(BAR)} numbers ({', '.join(BAR)}); found {len(bar)}.")
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._take(bar, error)
        row = np.empty(self._shape, dtype=np.float32)
        self._engine.advance(target, row)
        self._last = row
        features: Array = row[0]
        return features

    def _take(self, bar: Any, error: Exception) -> None:
        """A bar in which something is None is taken; else say what is wrong with it."""
        if isinstance(error, OptionError):
            raise error
        if not hasattr(bar, "__getitem__"):
            raise OptionError(f"a bar is a mapping or {len(BAR)} numbers, not {type(bar).__name__}.") from None
        by_name = hasattr(bar, "keys") or getattr(getattr(bar, "dtype", None), "names", None)
        for i, name in enumerate(self._columns):
            try:
                value = bar[name] if by_name else bar[self._places[i]]
            except (KeyError, ValueError, IndexError):
                raise OptionError(f"bar {self.num_bars:,} has no {name!r}, which the spec needs.") from None
            try:
                self._bar[i, 0] = np.nan if value is None else value
            except (TypeError, ValueError):
                raise BadValueError(f"{name!r} of bar {self.num_bars:,} is {str(value)[:60]!r}, not a number.") from None

    def extend(self, bars: Any) -> Array:
        """The features at many new bars, float32 [bars, features]; `bars` is a table as for `features`."""
        table = self._table(bars)
        out = np.empty((table.num_rows, self._shape[1]), dtype=np.float32)
        later = type(table)(columns=table.columns, offsets=table.offsets[-1:])  # no series begins: this one goes on
        for start in range(0, table.num_rows, PIECE):
            stop = min(start + PIECE, table.num_rows)
            advance(self._engine, later, start, stop, out[start:stop])
        if len(out):
            self._last = out[-1:].copy()
        return out

    def read(self, bars: Any) -> dict[str, Array]:
        """The columns of a table of bars that the spec needs, as arrays of numbers, NaN where missing; `extend` takes them too."""
        return self._table(bars).columns

    def _table(self, bars: Any) -> Bars:
        table = read_bars(bars, self.spec)
        if len(table.offsets) > 2:
            raise OptionError(f"a stream is one series, but these bars are {len(table.offsets) - 1:,}.")
        return table

    def reset(self) -> None:
        """Begin another series."""
        self._engine.reset()
        self._last = np.full(self._shape, np.nan, dtype=np.float32)

    def state(self) -> dict[str, Any]:
        """All that later features depend on: arrays, and the texts that say which spec they belong to.

        `np.savez(path, **stream.state())` keeps it, and `restore(np.load(path))` takes it up.
        """
        return {**self._identity(), "last": self._last.copy(), **self._engine.state()}

    def _identity(self) -> dict[str, str]:
        return {"spec": self.spec.content_hash, "compat": self.spec.compat or "exact"}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state, also one of another process; it must be one of the same spec."""
        for name, own in self._identity().items():
            found = str(state.get(name))  # from a file it is an array of one text
            if found != own:
                raise OptionError(f"the state belongs to another spec: its {name} is {found!r}, expected {own!r}.")
        last = np.asarray(state.get("last"))
        if last.shape != self._shape or last.dtype != np.float32:
            raise OptionError(
                f"the state is damaged: last is {last.dtype} of shape {last.shape}, expected float32 of {self._shape}."
            )
        self._engine.restore(state)
        self._last = last.copy()


# Saving: a store of bars becomes a store of bars and their features, one wide column more.
#
# All columns stay, so that labels and features lie in the same rows. The law is that of a pack: there is the whole new store or
# the old one, and replacing the manifest is the one commit point.

Progress = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done, and the bars so far."""

_LONG = 4 * SHARE  # series that are longer go to the disk piece by piece


def _quiet(phase: str, share: float, bars: int) -> None:
    return None


def write_features(
    bars: Store | str | os.PathLike[str],
    spec: Any,
    path: str | os.PathLike[str],
    *,
    name: str = "features",
    compat: str | None = None,
    threads: int | None = None,
    replace: bool = False,
    progress: Progress = _quiet,
) -> Store:
    """Write the store `path`: that of the bars, and a float32 column `name` as wide as the spec has features.

    Memory is bounded whatever the length of the series. A note of the store says what the numbers of a row are. With `replace`, a
    store that is at `path` already is replaced; without it, that is an error.
    """
    folder, num_threads = _disk.check_path(path), parse_threads(threads)
    store = bars if isinstance(bars, Store) else open_store(bars)
    wanted = parse_spec(spec, compat=compat)
    if store.path is None or store.manifest is None:
        raise OptionError(f"{store.name} is in memory: pack it first, stoker.pack(store, path).")
    if name in store.schema:
        raise OptionError(f"{store.name} has a column {name!r} already. Choose another name for the features.")
    manifest, source, table = store.manifest, store.path, read_bars(store, wanted)

    def write() -> Manifest:
        make_work(folder)
        _copy_shards(source, manifest, folder)
        column = _write_column(table, wanted, folder, name, num_threads, progress)
        columns, notes = [*manifest.columns, column], [*manifest.notes, _note(name, wanted)]
        return msgspec.structs.replace(manifest, columns=columns, notes=notes)

    replace_store(folder, [source], write, replace=replace)
    return open_store(folder)


def _note(name: str, spec: Spec) -> str:
    arithmetic = f", compat {spec.compat}" if spec.compat else ""
    return f"{name}: {', '.join(spec.names)} (spec {spec.content_hash}{arithmetic}, emit_from {spec.emit_from})"


def _copy_shards(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copy what the bars consist of; the hash of each block is taken anew, so damage is not carried on."""
    for i, shard in enumerate({shard.file: shard for shard in manifests.shards(manifest)}.values()):
        values = map_shard(source, shard, "a column of the bars")
        width = shard.shape[1] if len(shard.shape) == 2 else None
        rows_each = max(1, BLOCK_BYTES // (values.itemsize * (width or 1)))
        parts = (values[start : start + rows_each] for start in range(0, len(values), rows_each))
        if _write_shard(folder, f"final.{i}", values.dtype, width, parts) != shard:
            raise StoreDamagedError(f"{source / shard.file} has changed since it was written. Run `stoker verify {source}`.")


def _write_shard(folder: Path, name: str, dtype: np.dtype[Any], width: int | None, parts: Iterator[Array]) -> Shard:
    column = ColumnFile.create(folder / WORK_NAME / name, dtype, width)
    try:
        for part in parts:
            column.append(part)
        return column.seal(folder)
    finally:
        column.close()


def _write_column(bars: Bars, spec: Spec, folder: Path, name: str, threads: int, progress: Progress) -> ColumnEntry:
    tally = NonFiniteCount()
    done = 0

    def parts() -> Iterator[Array]:
        nonlocal done
        for rows in _rows_in_order(bars, compile_spec(spec), threads):
            tally.add(rows, first_step=done)
            done += len(rows)
            yield rows
            progress("features", done / max(bars.num_rows, 1), done)

    shard = _write_shard(folder, "final.features", np.dtype("<f4"), len(spec.features), parts())
    return ColumnEntry(
        name=name,
        level="step",
        kind="number",
        unit=None,
        values=shard,
        texts=None,
        missing=0,
        nonfinite=NonFinite(nan=tally.nan, inf=tally.inf, first=_place(tally.first_step, bars.offsets)),
    )


def _place(step: int | None, offsets: Array) -> list[int] | None:
    """The series of a step, and the step within it."""
    if step is None:
        return None
    series = int(np.searchsorted(offsets, step, side="right")) - 1
    return [series, step - int(offsets[series])]


def _rows_in_order(bars: Bars, program: Program, threads: int) -> Iterator[Array]:
    """The features of all bars; short series are computed ahead in threads, long ones piece by piece."""

    def compute(share: Share) -> Array:
        out = np.empty((share[1] - share[0], program.num_features), dtype=np.float32)
        advance(Engine(program), bars, *share, out)
        return out

    ahead: deque[Future[Array]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="stoker-features")
    try:
        for share in shares(bars.offsets):
            if share[1] - share[0] <= _LONG:
                ahead.append(pool.submit(compute, share))
            while ahead and (len(ahead) > threads or share[1] - share[0] > _LONG):
                yield ahead.popleft().result()
            if share[1] - share[0] > _LONG:
                yield from _pieces(Engine(program), bars, share)
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pieces(engine: Engine, bars: Bars, share: Share) -> Iterator[Array]:
    for start in range(*share, PIECE):
        stop = min(start + PIECE, share[1])
        out = np.empty((stop - start, engine.program.num_features), dtype=np.float32)
        advance(engine, bars, start, stop, out)
        yield out

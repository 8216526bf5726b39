"""Indicators in batch and as a stream: `features`, `FeatureStream`, and `write_features`, all with the same engine.

An engine is a program with its state. The state is all that later features depend on; it has a fixed size, and an engine that
restores it continues with the same bits. So the stream gives the bits of the batch.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from stoker.errors import BadValueError, OptionError
from stoker.extend import Array, disk
from stoker.store import Progress, Store, add_column, open_store, parse_threads, quiet
from stoker_recipes.tfa.indicators import exact, sentio
from stoker_recipes.tfa.indicators.bars import Bars, FeatureFrame, read_bars
from stoker_recipes.tfa.indicators.operators import new_assembly
from stoker_recipes.tfa.indicators.program import BAR, Arithmetic, Program, link
from stoker_recipes.tfa.indicators.spec import Spec, parse_spec


def compile_spec(spec: Spec) -> Program:
    """The program of all features of a spec."""
    arithmetic: Arithmetic = "sentio" if spec.compat == "sentio" else "exact"
    assembly = new_assembly(arithmetic)
    outputs = [feature.operator.define(assembly, feature.settings) for feature in spec.features]
    emit_from, pad = (spec.emit_from, spec.pad) if arithmetic == "sentio" else (0, 0.0)
    return link(assembly, outputs, arithmetic, emit_from=emit_from, pad=pad)


BLOCK = 512
"""Bars that are computed together: their columns stay in the L2 cache (benchmarks/tfa/bench_indicators.py)."""
NO_STARTS = np.zeros(0, dtype=np.int64)


class FeatureEngine:
    """Computes rows of features. Not thread-safe."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # A block is at least as long as the history, so that moving it costs at most one copy per bar.
        capacity = program.history + max(BLOCK, program.history)
        columns = np.zeros((program.num_live + len(program.constants), capacity), dtype=program.dtype)
        columns[program.num_live :] = program.constants[:, None]
        self._state = {
            "columns": columns,
            "sums": np.zeros((program.num_sum_rows, capacity)),
            "lanes": program.lanes.astype(program.dtype),
            "registers": np.zeros(program.num_registers),
        }
        self._kernel: Any = exact.advance if program.arithmetic == "exact" else sentio.advance
        # Built once: a stream passes them with each bar.
        self._before = (program.instructions, program.numbers, program.runs, *self._state.values())
        self._behind = (program.history, program.num_live, program.emit_from, program.pad)

    @property
    def num_bars(self) -> int:
        """Bars of the current series so far."""
        return int(self._state["registers"][0])

    def reset(self) -> None:
        """Start another series."""
        self._state["registers"][:] = 0
        self._state["lanes"][:2] = 0

    def advance(self, sources: Array, out: Array, starts: Array = NO_STARTS) -> None:
        """Compute the rows of `out` (float32 [bars, features]) from `sources` (float64 [columns, bars]).

        Another series begins at each bar of `starts` (int64, ascending). Both arrays are contiguous.
        """
        self._kernel(*self._before, starts, sources, out, *self._behind)

    def state(self) -> dict[str, Array]:
        """A copy of the state."""
        return {name: array.copy() for name, array in self._state.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Resume from the state of an engine with the same program."""
        for name, target in self._state.items():
            array = np.asarray(state[name]) if name in state else None
            if array is None or array.shape != target.shape or array.dtype != target.dtype:
                shape = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
                raise OptionError(
                    f"the state belongs to another spec: {name} is {shape}, expected {target.dtype} of shape {target.shape}.",
                    parameter="state",
                )
        place, capacity = float(np.asarray(state["registers"])[1]), self._state["columns"].shape[1]
        if place != 0 and not self.program.history <= place <= capacity:
            raise OptionError(
                f"the state is damaged: its position is {place:g}, beyond the {capacity} of its columns.", parameter="state"
            )
        for name, target in self._state.items():
            target[...] = state[name]


# ---- batch: the features of whole series, in threads ----
# The engine of a thread is reset with each series, so nothing crosses a boundary. Bars go to the kernel in pieces: beyond the result,
# memory does not grow with their number.

Share = tuple[int, int]
"""Rows from start to stop, with the starts of series at both ends."""

PIECE = 1 << 14
"""Bars per call of the kernel."""
SHARE = 1 << 16
"""Bars per task of a thread; a longer series is not split."""


def features(
    bars: Any, spec: Any, *, series: str | None = None, compat: str | None = None, threads: int | None = None
) -> FeatureFrame:
    """Compute the features of a spec for all bars.

    Args:
        bars: A DataFrame, an Arrow table, a mapping of arrays or a store, with those of the columns open, high, low, close and
            volume that the spec needs. The rows of a series are in the order of time.
        spec: The features: a mapping, a JSON string, or the path of a JSON file (docs/encoding/indicators.md).
        series: Column with the series of each row; a store has its own.
        compat: "sentio" gives the results of Sentio's C++ builder, bit for bit. Default: exact float64 arithmetic.
        threads: Default: one per core.

    Returns:
        float32 [bars, features] with the names of the features, and which values are ready.

    Raises:
        OptionError: The spec is invalid, or a column is missing.
        BadValueError: A value is not numeric.
        TimeOrderError: The bars are not in the order of time.

    Example:
        >>> frame = features({"close": [1.0, 2.0, 4.0]}, {"features": [{"name": "mean", "op": "SMA", "window": 2}]})
        >>> frame["mean"].tolist()
        [nan, 1.5, 3.0]
        >>> frame.ready[:, 0].tolist()
        [False, True, True]
    """
    wanted = parse_spec(spec, compat=compat)
    table = read_bars(bars, wanted, series=series)
    values = np.empty((table.num_rows, len(wanted.features)), dtype=np.float32)
    program = compile_spec(wanted)

    def compute(share: Share) -> None:
        engine = FeatureEngine(program)
        for start in range(*share, PIECE):
            stop = min(start + PIECE, share[1])
            if table.order is None:
                advance(engine, table, start, stop, values[start:stop])
            else:
                rows = np.empty((stop - start, values.shape[1]), dtype=np.float32)
                advance(engine, table, start, stop, rows)
                values[table.order[start:stop]] = rows

    tasks = list(shares(table.offsets))
    num_threads = min(len(tasks), parse_threads(threads))
    if num_threads <= 1:
        for share in tasks:
            compute(share)
    else:
        pool = ThreadPoolExecutor(num_threads, thread_name_prefix="stoker-features")
        try:
            list(pool.map(compute, tasks))  # the first error stops them
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return FeatureFrame(values=values, spec=wanted, offsets=table.offsets, order=table.order)


def advance(engine: FeatureEngine, bars: Bars, start: int, stop: int, out: Array) -> None:
    """Advance an engine over some rows of the bars, counted series by series; it is reset where a series begins."""
    rows = slice(start, stop) if bars.order is None else bars.order[start:stop]
    sources = np.empty((len(engine.program.sources), stop - start))
    for i, name in enumerate(engine.program.sources):
        sources[i] = bars.columns[name][rows]
    first, last = np.searchsorted(bars.offsets, [start, stop])
    engine.advance(sources, out, np.unique(bars.offsets[first:last]) - start)


def shares(offsets: Array) -> Iterator[Share]:
    """Cut all rows into tasks for threads, at the starts of series."""
    start, end = 0, int(offsets[-1])
    while start < end:
        stop = int(offsets[np.searchsorted(offsets, min(start + SHARE, end))])
        yield start, stop
        start = stop


class FeatureStream:
    """The features of one series, one bar at a time, with the same bits as `features` gives in batch.

    `state` and `restore` move a stream to another process, so that a model that was trained on a batch can go live without its
    history.

    Args:
        spec: The features, as for `features`.
        compat: As for `features`.

    Example:
        >>> stream = FeatureStream({"features": [{"name": "mean", "op": "SMA", "window": 2}]})
        >>> [stream.push({"close": close}).tolist() for close in (1.0, 2.0, 4.0)]
        [[nan], [1.5], [3.0]]
        >>> other = FeatureStream(stream.spec)
        >>> other.restore(stream.state())
        >>> other.push({"close": 6.0}).tolist()
        [5.0]
    """

    def __init__(self, spec: Any, *, compat: str | None = None) -> None:
        self.spec = parse_spec(spec, compat=compat)
        self._engine = FeatureEngine(compile_spec(self.spec))
        self._columns = self._engine.program.sources
        self._places = [BAR.index(name) for name in self._columns]
        self._bar = np.empty((len(self._columns), 1))
        self._shape = (1, len(self.spec.features))
        self._last = np.full(self._shape, np.nan, dtype=np.float32)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the features."""
        return self.spec.names

    @property
    def emit_from(self) -> int:
        """The first bar at which all features are ready, if no value is missing."""
        return self.spec.emit_from

    @property
    def num_bars(self) -> int:
        """Number of bars so far."""
        return self._engine.num_bars

    @property
    def bar(self) -> dict[str, float]:
        """The last bar, with the columns that the spec needs; NaN where a value is missing."""
        return dict(zip(self._columns, self._bar[:, 0].tolist(), strict=True))

    @property
    def ready(self) -> Array:
        """Which features of the last bar are ready; bool [features]."""
        if self.spec.compat is None:
            return np.asarray(np.isfinite(self._last[0]))
        first = np.array([feature.first for feature in self.spec.features])
        return np.asarray(self.num_bars > np.maximum(first, self.emit_from))

    def push(self, bar: Any) -> Array:
        """The features at a new bar, float32 [features].

        Args:
            bar: A mapping (or a record, or a row of a table) with the columns that the spec needs, or the five numbers open,
                high, low, close, volume. None and NaN are missing values.

        Raises:
            OptionError: A column is missing.
            BadValueError: A value is not numeric.
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
                raise OptionError(
                    f"a bar is a mapping or {len(BAR)} numbers ({', '.join(BAR)}); found {len(bar)}.", parameter="bar"
                )
        except (KeyError, TypeError, ValueError, IndexError) as error:
            self._take(bar, error)
        row = np.empty(self._shape, dtype=np.float32)
        self._engine.advance(target, row)
        self._last = row
        features: Array = row[0]
        return features

    def _take(self, bar: Any, error: Exception) -> None:
        """Read a bar with missing values; raises an error that names what is wrong with it."""
        if isinstance(error, OptionError):
            raise error
        if not hasattr(bar, "__getitem__"):
            raise OptionError(f"a bar is a mapping or {len(BAR)} numbers, not {type(bar).__name__}.", parameter="bar") from None
        by_name = hasattr(bar, "keys") or getattr(getattr(bar, "dtype", None), "names", None)
        for i, name in enumerate(self._columns):
            try:
                value = bar[name] if by_name else bar[self._places[i]]
            except (KeyError, ValueError, IndexError):
                raise OptionError(f"bar {self.num_bars:,} has no {name!r}, which the spec needs.", parameter="bar") from None
            try:
                self._bar[i, 0] = np.nan if value is None else value
            except (TypeError, ValueError):
                raise BadValueError(f"{name!r} of bar {self.num_bars:,} is {str(value)[:60]!r}, which is not numeric.") from None

    def extend(self, bars: Any) -> Array:
        """The features at many new bars, float32 [bars, features]; `bars` is a table as for `features`."""
        table = self._table(bars)
        out = np.empty((table.num_rows, self._shape[1]), dtype=np.float32)
        later = type(table)(columns=table.columns, offsets=table.offsets[-1:])  # no series begins here: this one continues
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
            raise OptionError(f"a stream is one series, but these bars have {len(table.offsets) - 1:,} series.", parameter="bar")
        return table

    def reset(self) -> None:
        """Start another series."""
        self._engine.reset()
        self._last = np.full(self._shape, np.nan, dtype=np.float32)

    def state(self) -> dict[str, Any]:
        """All that later features depend on: arrays, and strings that identify the spec.

        `np.savez(path, **stream.state())` saves it, and `restore(np.load(path))` loads it.
        """
        identity = {"spec": self.spec.content_hash, "compat": self.spec.compat or "exact"}
        return {**identity, "last": self._last.copy(), **self._engine.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the same spec, for example of another process."""
        for name, expected in (("spec", self.spec.content_hash), ("compat", self.spec.compat or "exact")):
            value = str(state.get(name))  # from a file it is an array of one string
            if value != expected:
                raise OptionError(
                    f"the state belongs to another spec: its {name} is {value!r}, expected {expected!r}.", parameter="state"
                )
        last = np.asarray(state.get("last"))
        if last.shape != self._shape or last.dtype != np.float32:
            raise OptionError(
                f"the state is damaged: last is {last.dtype} of shape {last.shape}, expected float32 of {self._shape}.",
                parameter="state",
            )
        self._engine.restore(state)
        self._last = last.copy()


# ---- writing: a store of bars becomes a store of bars and their features, one wide column more ----

_LONG = 4 * SHARE  # longer series are written piece by piece


def write_features(
    bars: Store | str | os.PathLike[str],
    spec: Any,
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    replace: bool = False,
    progress: Progress = quiet,
) -> Store:
    """Write the store `path`: that of the bars, and a float32 column `features` as wide as the spec has features.

    All columns stay, so labels and features are in the same rows. Memory is bounded whatever the length of the series. A note of the
    store lists the features. With `replace`, a store at `path` is replaced; without it, that is an error.
    """
    folder, num_threads = disk.check_path(path), parse_threads(threads)
    store = bars if isinstance(bars, Store) else open_store(bars)
    wanted = parse_spec(spec)
    table, program = read_bars(store, wanted), compile_spec(wanted)
    arithmetic = f", compat {wanted.compat}" if wanted.compat else ""
    note = f"features: {', '.join(wanted.names)} (spec {wanted.content_hash}{arithmetic}, emit_from {wanted.emit_from})"

    def parts() -> Iterator[Array]:
        done = 0
        for rows in _rows_in_order(table, program, num_threads):
            yield rows
            done += len(rows)
            progress("features", done / max(table.num_rows, 1), done)

    return add_column(store, folder, "features", parts(), dtype="<f4", width=program.num_features, note=note, replace=replace)


def _rows_in_order(bars: Bars, program: Program, threads: int) -> Iterator[Array]:
    """The features of all bars in order; short series are prefetched in threads, long ones computed piece by piece."""

    def compute(share: Share) -> Array:
        out = np.empty((share[1] - share[0], program.num_features), dtype=np.float32)
        advance(FeatureEngine(program), bars, *share, out)
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
                yield from _pieces(FeatureEngine(program), bars, share)
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pieces(engine: FeatureEngine, bars: Bars, share: Share) -> Iterator[Array]:
    for start in range(*share, PIECE):
        stop = min(start + PIECE, share[1])
        out = np.empty((stop - start, engine.program.num_features), dtype=np.float32)
        advance(engine, bars, start, stop, out)
        yield out

"""Batch: the features of whole series, some series at a time in each thread.

A thread begins its engine anew with each series, so nothing crosses a boundary. Bars go to the kernel in pieces: beside the
result, memory does not grow with their number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.indicators.bars import Bars, read_bars
from stoker.encode.indicators.compiling import compile_spec
from stoker.encode.indicators.engine import Engine
from stoker.encode.indicators.frame import FeatureFrame
from stoker.encode.indicators.spec import parse_spec
from stoker.store.packing.options import parse_threads

Array = npt.NDArray[Any]
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

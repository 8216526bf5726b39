"""States: distributions as bytes and back, so that parts can be analysed on different machines and joined later."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stoker.encode.statistics.columns import State
from stoker.encode.statistics.quantiles import Distribution
from stoker.encode.statistics.runs import Run
from stoker.encode.statistics.sketch import GROUP, Sketch

_WIDTHS = (1, 2, 4, 8)
_NOTHING = memoryview(b"")


def state_of(distribution: Distribution) -> State:
    """The values of a distribution, or its sketch, as bytes."""
    sketch = distribution.sketch
    run = distribution.run if sketch is None else sketch.open
    levels = [] if sketch is None else [_NOTHING if level is None else _bytes(level, "<u8") for level in sketch.levels]
    width = 0 if run.once else _width(int(run.counts.max()))
    return State(keys=_bytes(run.keys, "<u8"), counts=_bytes(run.counts, f"<u{width}") if width else _NOTHING, levels=levels)


def distribution_of(state: State, limit: int) -> Distribution:
    """The distribution of a state; the smallest and largest value of a sketch are not in it."""
    keys = np.frombuffer(state.keys, dtype="<u8").astype(np.uint64)
    counts = _counts(state)
    distribution = Distribution(limit)
    if not state.levels:
        distribution.add(Run(keys, counts))
        return distribution
    distribution.sketch = sketch = Sketch(limit)
    sketch.open = Run(keys, counts)
    sketch.levels = [np.frombuffer(level, dtype="<u8").astype(np.uint64) if level else None for level in state.levels]
    return distribution


def fault_in(state: State, *, num_values: int, limit: int) -> tuple[str, str, str] | None:
    """What makes a state impossible: the field, what it should be, and what it is."""
    if len(state.keys) % 8:
        return "keys", "whole numbers of 8 bytes", f"{len(state.keys):,} bytes"
    keys = np.frombuffer(state.keys, dtype="<u8")
    if state.counts and len(state.counts) not in [len(keys) * width for width in _WIDTHS]:
        return "counts", f"1, 2, 4 or 8 bytes for each of {len(keys):,} keys, or none", f"{len(state.counts):,} bytes"
    counts = _counts(state)
    if not (keys[1:] > keys[:-1]).all():
        return "keys", "ascending keys", "others"
    if (counts < 1).any():
        return "counts", "at least 1 each", str(counts.min())
    total = int(counts.sum())
    for i, level in enumerate(state.levels):
        found = np.frombuffer(level, dtype="<u8") if len(level) % 8 == 0 else np.empty(0)
        if level and (len(found) != limit // GROUP or not (found[1:] >= found[:-1]).all()):
            return f"levels[{i}]", f"{limit // GROUP:,} ascending keys", f"{len(level):,} bytes"
        total += limit << i if level else 0
    if state.levels and not state.levels[-1]:
        return "levels", "no empty level at the end", "one"
    if state.num_keys is not None:
        if state.levels or len(state.num_keys) != 8 * len(keys):
            return "num_keys", f"8 bytes for each of {len(keys):,} keys and no levels", f"{len(state.num_keys):,} bytes"
        if not (np.frombuffer(state.num_keys, dtype="<u8") <= num_values).all():
            return "num_keys", f"at most {num_values:,} each", "more"
    if total != num_values:
        return "counts", f"{num_values:,} values in all", f"{total:,}"
    if len(keys) > limit:
        return "keys", f"at most {limit:,} keys", f"{len(keys):,}"
    return None


def counted_by_key(state: State) -> Run | None:
    """The values of a state with how many keys have each; None where that is not known."""
    if state.num_keys is None:
        return None
    counts = np.frombuffer(state.num_keys, dtype="<u8").astype(np.int64)
    return Run(np.frombuffer(state.keys, dtype="<u8").astype(np.uint64), counts)


def with_counts_by_key(state: State, counts: npt.NDArray[np.int64] | None) -> State:
    """The same values, with how many keys have each."""
    return msgspec.structs.replace(state, num_keys=None if counts is None else memoryview(counts.astype("<u8").tobytes()))


def _counts(state: State) -> npt.NDArray[np.int64]:
    num_keys = len(state.keys) // 8
    if not state.counts:
        return np.ones(num_keys, dtype=np.int64)
    return np.frombuffer(state.counts, dtype=f"<u{len(state.counts) // num_keys}").astype(np.int64)


def _width(count: int) -> int:
    """Bytes that a count needs."""
    return next(width for width in _WIDTHS if count < 1 << 8 * width)


def _bytes(values: Any, dtype: str) -> memoryview:
    """Numbers as bytes; where they are so already, they are shared."""
    return memoryview(np.ascontiguousarray(values, dtype=dtype).view(np.uint8)) if len(values) else _NOTHING

"""Moments: count, mean and spread of a column over the steps of a part, in one pass and a fixed amount of memory.

Values are taken some thousand at a time: their mean, then the squares around it, joined with those before by Chan's formula. All in
float64, so neither many values nor a large mean lose digits. Values that are not finite do not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError
from stoker.feed.columns import identity_of, lengths_of
from stoker.kernel import kernel
from stoker.order.part import Part
from stoker.order.reads import merge
from stoker.store.store import Store

Array = npt.NDArray[Any]

_ROWS_AT_ONCE = 2**20
_PIECE = 2048


@dataclass
class Moments:
    """Of each number of a column; `squares` are summed distances from the mean."""

    width: int
    num_rows: int = 0
    """Steps (or series) that were looked at, with those that did not count."""
    counts: Array = field(init=False)
    means: Array = field(init=False)
    squares: Array = field(init=False)
    least: Array = field(init=False)
    largest: Array = field(init=False)

    def __post_init__(self) -> None:
        self.counts, self.means, self.squares = (np.zeros(self.width) for _ in range(3))
        self.least, self.largest = np.full(self.width, np.inf), np.full(self.width, -np.inf)

    def add(self, values: Array, starts: Array, stops: Array) -> None:
        """Add some rows of [rows, width]."""
        # Compiled kernels cannot calculate with float16.
        values = values.astype(np.float32) if values.dtype == np.float16 else values
        _add(values, starts, stops, _PIECE, self.counts, self.means, self.squares, self.least, self.largest)
        self.num_rows += int((stops - starts).sum())

    @property
    def deviations(self) -> Array:
        """Standard deviations; 1 where there is no spread beyond rounding, as in the scales of a feed."""
        found = np.sqrt(self.squares / np.maximum(self.counts, 1))
        return np.where((found > 1e-7 * np.abs(self.means)) & (found > 0), found, 1.0)


@kernel
def _add(
    values: Array,
    starts: Array,
    stops: Array,
    piece: int,
    counts: Array,
    means: Array,
    squares: Array,
    least: Array,
    largest: Array,
) -> None:
    width = values.shape[1]
    count, mean, square = np.empty(width), np.empty(width), np.empty(width)
    for i in range(len(starts)):
        for first in range(starts[i], stops[i], piece):
            last = min(first + piece, stops[i])
            count[:], mean[:], square[:] = 0.0, 0.0, 0.0
            for t in range(first, last):
                for k in range(width):
                    x = np.float64(values[t, k])
                    if np.isfinite(x):
                        count[k] += 1
                        mean[k] += x
                        least[k] = min(least[k], x)
                        largest[k] = max(largest[k], x)
            for k in range(width):
                mean[k] = mean[k] / count[k] if count[k] else 0.0
            for t in range(first, last):
                for k in range(width):
                    x = np.float64(values[t, k])
                    if np.isfinite(x):
                        square[k] += (x - mean[k]) * (x - mean[k])
            for k in range(width):
                total = counts[k] + count[k]
                if count[k]:
                    apart = mean[k] - means[k]
                    means[k] += apart * count[k] / total
                    squares[k] += square[k] + apart * apart * counts[k] * count[k] / total
                    counts[k] = total


def measure(store: Store, part: Part | None, name: str) -> Moments:
    """The moments of a column over the steps (or series) that samples of the part hold; of all without a part."""
    column = store.schema.get(name)
    if column is None:
        raise OptionError(f"{store.name} has no column {name!r}; it has {', '.join(store.schema)}.")
    if column.kind != "number" or column.dtype is None:
        raise OptionError(f"column {name!r} of {store.name} holds {column.label}, which has no mean. Leave it out of columns=.")
    values = store.column(name)
    values = values.reshape(len(values), column.width or 1)
    moments = Moments(values.shape[1])
    for starts, stops in _stretches(store, part, column.level):
        # Some rows at a time, as float16 is converted.
        for row in range(int(starts[0]) if len(starts) else 0, int(stops[-1]) if len(stops) else 0, _ROWS_AT_ONCE):
            end = row + _ROWS_AT_ONCE
            some = slice(np.searchsorted(stops, row, side="right"), np.searchsorted(starts, end, side="left"))
            if some.start < some.stop:
                moments.add(values[row:end], np.maximum(starts[some], row) - row, np.minimum(stops[some], end) - row)
    return moments


def _stretches(store: Store, part: Part | None, level: str) -> Iterator[tuple[Array, Array]]:
    """Rows of a column, in stretches that rise and do not touch."""
    if part is None:
        yield np.array([0]), np.array([store.num_steps if level == "step" else len(store)])
        return
    part.check(part.view, identity_of(store))
    for series, starts, stops, _ in part.over(part.view.over(lengths_of(store))).stretches():
        if len(series):
            yield merge(starts, stops) if level == "step" else merge(series, series + 1)

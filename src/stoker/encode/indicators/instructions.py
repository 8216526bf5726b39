"""Instructions: what both arithmetics know, one loop over a block of bars each.

A column is one row of a matrix, `history` earlier bars followed by the block at place `p`; an operand is read so many bars
back. The law: what needs a missing value (NaN) is missing, whichever operand it is, and a bar never reads a later one.
The types are those of the columns, so the same text is the arithmetic in float32 and in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.indicators.part import part

Array = npt.NDArray[Any]
Number = float | np.floating[Any]

ADD, SUBTRACT, MULTIPLY, DIVIDE, LARGER, ABSOLUTE, LOGARITHM, ROOT, ABOVE, RATIO, HIGHEST, DISTANCE = range(12)


@part
def compute(op: int, a: Array, b: Array, limit: Number, otherwise: Number, y: Array) -> None:
    """One number a bar from one or two others, for every bar of the block.

    LARGER is the larger of the two, ABOVE is 1 where a > b and else 0, RATIO is a / b or `otherwise` where b <= `limit`; a
    quotient is missing where b is 0.
    """
    n = len(y)
    if op == ADD:
        for t in range(n):
            y[t] = a[t] + b[t]
    elif op == SUBTRACT:
        for t in range(n):
            y[t] = a[t] - b[t]
    elif op == MULTIPLY:
        for t in range(n):
            y[t] = a[t] * b[t]
    elif op in (DIVIDE, RATIO):
        # One loop for both: a quotient is a ratio for which only 0 is too little.
        for t in range(n):
            too_little = b[t] <= limit and (b[t] == limit or op == RATIO)
            y[t] = otherwise - (a[t] - a[t]) if too_little else a[t] / b[t]
    elif op == LARGER:
        for t in range(n):
            y[t] = a[t] if a[t] > b[t] or a[t] != a[t] else b[t]
    elif op == ABSOLUTE:
        for t in range(n):
            y[t] = abs(a[t])
    elif op == LOGARITHM:
        for t in range(n):
            y[t] = np.log(a[t]) if a[t] > 0 else np.nan
    elif op == ROOT:
        for t in range(n):
            y[t] = np.sqrt(a[t])
    elif op == ABOVE:
        for t in range(n):
            y[t] = 1.0 if a[t] > b[t] else 0.0 if a[t] <= b[t] else np.nan


@part
def highest(x: Array, window: int, scratch: Array, y: Array) -> None:
    """The largest of `window` values up to each bar; `x` begins `window` - 1 bars before the block.

    Spans of 1, 2, 4, … values are joined two by two, so a window costs its logarithm.
    """
    here, n, span = x, len(x), 1
    while 2 * span <= window:
        n -= span
        there = here[span : span + n]
        for t in range(n):  # in place from the second time on: what is read lies ahead of what is written
            scratch[t] = here[t] if here[t] > there[t] or here[t] != here[t] else there[t]
        here = scratch
        span *= 2
    there = here[window - span :]
    for t in range(len(y)):
        y[t] = here[t] if here[t] > there[t] or here[t] != here[t] else there[t]


@part
def distance(x: Array, center: Array, window: int, y: Array) -> None:
    """The sum of |x - center| over `window` values up to each bar, the oldest first; `x` begins `window` - 1 bars earlier."""
    for k in range(window):
        values = x[k:]
        for t in range(len(y)):
            y[t] = (y[t] if k else 0) + abs(values[t] - center[t])


@part
def begin(registers: Array, lanes: Array) -> None:
    """Forget a series: all registers, and the averages in the first two rows of the lanes."""
    for r in range(len(registers)):
        registers[r] = 0
    for j in range(lanes.shape[1]):
        lanes[0, j] = lanes[1, j] = 0


@part
def keep_history(rows: Array, count: int, place: int, history: int, before: float) -> None:
    """Bring the last `history` values of each row to its front; at the begin of a series (place 0) they are `before`."""
    for i in range(count):
        row = rows[i]
        for t in range(history):
            row[t] = row[place - history + t] if place else before


@part
def write_columns(columns: Array, place: int, runs: Array, first: int, count: int, most: Number, out: Array) -> None:
    """Copy finished columns into the rows of the result, 16 rows at a time so that both sides stay in the nearest cache.

    What is larger than `most` is missing. A NaN is written as the one that NumPy has: which one an operation gives depends on
    the machine.
    """
    for top in range(0, len(out), 16):
        n = min(16, len(out) - top)
        for i in range(first, first + count):
            column = columns[runs[i, 0], place + top : place + top + n]
            feature = runs[i, 1]
            for t in range(n):
                out[top + t, feature] = column[t] if abs(column[t]) <= most else np.nan

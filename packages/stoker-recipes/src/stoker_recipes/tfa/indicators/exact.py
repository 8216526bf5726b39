"""The exact arithmetic: float64 throughout, with missing values, and errors that do not grow with the length of a series.

The kernel `advance` computes rows of features from bars and keeps a state from block to block, so batch and stream run the same
code and nothing depends on how the bars are cut into blocks. The rules:
    missing       a missing value leaves every state as it was; a window that contains one is not ready
    recurrences   begin as the mean of their first `window` values, and are ready from the last of these on
    windows       are differences of running sums, which restart every `PERIOD` bars (and more often at the start of a series)
                  around a current value, so that they neither drift nor lose digits; where values are constant, the mean is that
                  value and the deviation 0
`ExactAssembly` has the instructions of this arithmetic for the definitions in operators.py.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod

import numpy as np

from stoker.extend import Array, kernel
from stoker_recipes.tfa.indicators.program import (
    DISTANCE,
    HIGHEST,
    MULTIPLY,
    Assembly,
    Instruction,
    Lane,
    Numbers,
    Term,
    compute,
    distance,
    highest,
    open_block,
    part,
    write_columns,
)

LOAD, SUMS, BAND, SCORE, TOTAL, SMOOTH, EMA, RSI, WRITE = range(20, 29)
SUM_ROWS = 5
"""Running sums of a column: of its values, of their squares, of the rounding errors of those, of the number of values, and of the
number of changes from one to the next."""

PERIOD = 1024
"""Running sums restart after this many bars."""
_MOST = 3.4028234663852886e38  # the largest float32


@part
def load(source: Array, y: Array) -> None:
    """Take in values; one that is not a finite float32 is missing."""
    for t in range(len(y)):
        y[t] = source[t] if abs(source[t]) <= _MOST else np.nan


@part
def run_sums(
    x: Array, p: int, n: int, index: int, history: int, restart: bool, sums: Array, row: int, registers: Array, r: int
) -> None:
    """Extend the running sums of a column over the block; with `restart`, those of the past are computed again for a new anchor.

    The anchor is the median of the last three values: one that is far from the others would cost digits.
    """
    values, squares, lost, present, changes = sums[row], sums[row + 1], sums[row + 2], sums[row + 3], sums[row + 4]
    anchor, last, one_before = registers[r], registers[r + 1], registers[r + 2]
    if restart:
        last, one_before = (last, one_before) if index else (np.nan, np.nan)
        anchor = x[p] if abs(x[p]) < np.inf else last
        if anchor == x[p] and one_before == one_before:
            anchor = max(min(x[p], last), min(max(x[p], last), one_before))
        values[p - 1] = squares[p - 1] = lost[p - 1] = present[p - 1] = changes[p - 1] = 0.0
        for t in range(p - 1, p - min(index + 1, history), -1):  # down to what was before the first bar
            known = abs(x[t]) < np.inf
            d = x[t] - anchor if known else 0.0
            values[t - 1] = values[t] - d
            squares[t - 1] = squares[t] - d * d
            gained = squares[t - 1] - squares[t]
            lost[t - 1] = lost[t] + ((squares[t] - (squares[t - 1] - gained)) + (-d * d - gained))
            present[t - 1] = present[t] - (1.0 if known else 0.0)
            changes[t - 1] = changes[t] - (1.0 if x[t] != x[t - 1] else 0.0)
    value, square, rests = values[p - 1], squares[p - 1], lost[p - 1]
    num_present, num_changes = present[p - 1], changes[p - 1]
    for t in range(p, p + n):
        if abs(x[t]) < np.inf:
            anchor = anchor if anchor == anchor else x[t]
            d = x[t] - anchor
            value += d
            before = square
            square += d * d
            gained = square - before  # the rest is the rounding error (Knuth's two-sum)
            rests += (before - (square - gained)) + (d * d - gained)
            num_present += 1.0
            last, one_before = x[t], last
        num_changes += 1.0 if x[t] != x[t - 1] else 0.0
        values[t], squares[t], lost[t], present[t], changes[t] = value, square, rests, num_present, num_changes
    registers[r], registers[r + 1], registers[r + 2] = anchor, last, one_before


@part
def over_window(
    op: int, x: Array, sums: Array, row: int, p: int, window: int, anchor: float, means: float, deviations: float, y: Array
) -> None:
    """Of the window that ends at each bar: BAND is `means` means plus `deviations` (population) deviations; SCORE is the
    z-score of the bar, 0 where the deviation is 0."""
    n, first = len(y), p - window
    s1, s0 = sums[row, p : p + n], sums[row, first : first + n]
    q1, q0 = sums[row + 1, p : p + n], sums[row + 1, first : first + n]
    l1, l0 = sums[row + 2, p : p + n], sums[row + 2, first : first + n]
    t1, t0 = sums[row + 3, p : p + n], sums[row + 3, first : first + n]
    c1, c0 = sums[row + 4, p : p + n], sums[row + 4, first + 1 : first + 1 + n]
    share = 1.0 / window
    if op == BAND:
        for t in range(n):
            mean = (s1[t] - s0[t]) * share
            variance = ((q1[t] - q0[t]) + (l1[t] - l0[t])) * share - mean * mean
            same = c1[t] == c0[t]
            deviation = 0.0 if same or variance <= 0.0 else np.sqrt(variance)
            level = x[t] if same else anchor + mean
            y[t] = means * level + deviations * deviation if t1[t] - t0[t] == window else np.nan
    else:
        for t in range(n):
            mean = (s1[t] - s0[t]) * share
            variance = ((q1[t] - q0[t]) + (l1[t] - l0[t])) * share - mean * mean
            z = 0.0 if c1[t] == c0[t] or variance <= 0.0 else ((x[t] - anchor) - mean) / np.sqrt(variance)
            y[t] = z if t1[t] - t0[t] == window else np.nan


@part
def recur(op: int, x: Array, window: int, weight: float, registers: Array, r: int, y: Array) -> None:
    """TOTAL is the sum of all values so far. SMOOTH is an exponential average with `weight`; the first `window` values weigh
    alike."""
    n, held = registers[r], registers[r + 1]
    for t in range(len(y)):
        y[t] = np.nan
        if abs(x[t]) < np.inf:
            n += 1.0
            held += x[t] if op == TOTAL else (1.0 / n if n <= window else weight) * (x[t] - held)
            y[t] = held if n >= window else np.nan
    registers[r], registers[r + 1] = n, held


@part
def ema_lanes(x: Array, lanes: Array, begin: int, size: int, runs: Array, run: int, count: int, n: float, out: Array) -> float:
    """SMOOTH of one column for many windows side by side, written straight into the rows of the result.

    `n` is the number of values so far; returns it with those of the block.
    """
    averages, windows, weights = lanes[0, begin : begin + size], lanes[2, begin : begin + size], lanes[3, begin : begin + size]
    for t in range(len(out)):
        known = abs(x[t]) < np.inf
        if known:
            n += 1.0
            share = 1.0 / n
            for j in range(size):
                averages[j] += (share if n <= windows[j] else weights[j]) * (x[t] - averages[j])
        for i in range(run, run + count):
            first = runs[i, 0]
            y, average, window = out[t, runs[i, 1] : runs[i, 1] + runs[i, 2]], averages[first:], windows[first:]
            for j in range(len(y)):
                y[j] = average[j] if known and n >= window[j] else np.nan
    return n


@part
def rsi_lanes(x: Array, lanes: Array, begin: int, size: int, runs: Array, run: int, count: int, n: float, out: Array) -> float:
    """The share of gains among gains and losses, both averaged as by SMOOTH, in percent; `x` begins one bar earlier.

    `n` is the number of changes so far; returns it with those of the block.
    """
    gains, losses = lanes[0, begin : begin + size], lanes[1, begin : begin + size]
    windows, weights = lanes[2, begin : begin + size], lanes[3, begin : begin + size]
    for t in range(len(out)):
        change = x[t + 1] - x[t]
        known = abs(change) < np.inf
        if known:
            gain, loss = max(change, 0.0), max(-change, 0.0)
            n += 1.0
            share = 1.0 / n
            for j in range(size):
                weight = share if n <= windows[j] else weights[j]
                gains[j] += weight * (gain - gains[j])
                losses[j] += weight * (loss - losses[j])
        for i in range(run, run + count):
            first = runs[i, 0]
            y, window = out[t, runs[i, 1] : runs[i, 1] + runs[i, 2]], windows[first:]
            up, down = gains[first:], losses[first:]
            for j in range(len(y)):
                both = up[j] + down[j]
                percent = 100.0 * up[j] / both if both > 0.0 else 50.0
                y[j] = percent if known and n >= window[j] else np.nan
    return n


@kernel
def advance(
    program: Array, numbers: Array, runs: Array,
    columns: Array, sums: Array, lanes: Array, registers: Array,
    starts: Array, sources: Array, out: Array,
    history: int, num_live: int, emit_from: int, pad: float,
) -> None:  # fmt: skip
    """Compute the rows of `out` from the bars in `sources` [kinds, bars], and move the state on.

    `starts` are the bars where another series begins. Registers 0 to 2 are the number of bars so far, the position in the columns
    (0 at the start of a series), and the bar at which sums restart. `emit_from` and `pad` are for the other arithmetic.
    """
    done, num_begun = 0, 0
    while done < len(out):
        starts_here = num_begun < len(starts) and starts[num_begun] == done
        num_begun += starts_here
        index, p = open_block(starts_here, (columns, sums, lanes, registers), num_live, history, np.nan)
        end = starts[num_begun] if num_begun < len(starts) else len(out)
        restart = index == int(registers[2])
        if restart:  # after 1, 2, 4, 8, … bars, and then every `PERIOD`
            registers[2] = 1 if index == 0 else 2 * index if index < PERIOD else index + PERIOD
        n = min(end - done, columns.shape[1] - p, int(registers[2]) - index)
        bars, block = sources[:, done : done + n], out[done : done + n]
        for i in range(len(program)):
            op, w, r, row, run, count = program[i, 0], program[i, 6], program[i, 8], program[i, 9], program[i, 10], program[i, 11]
            x, z = columns[program[i, 2], p - program[i, 3] : p + n], columns[program[i, 4], p - program[i, 5] : p + n]
            y = columns[program[i, 1], p : p + n]
            if op < HIGHEST:
                compute(op, x, z, numbers[i, 0], numbers[i, 1], y)
            elif op == HIGHEST:
                highest(x, w, columns[program[i, 4]], y)
            elif op == DISTANCE:
                distance(x, z, w, y)
            elif op == LOAD:
                load(bars[row], y)
            elif op == SUMS:
                run_sums(columns[program[i, 2]], p, n, index, history, restart, sums, row, registers, r)
            elif op in (BAND, SCORE):
                over_window(op, x, sums, row, p, w, registers[r], numbers[i, 0], numbers[i, 1], y)
            elif op in (TOTAL, SMOOTH):
                recur(op, x, w, numbers[i, 0], registers, r, y)
            elif op == EMA:
                registers[r] = ema_lanes(x, lanes, row, w, runs, run, count, registers[r], block)
            elif op == RSI:
                registers[r] = rsi_lanes(x, lanes, row, w, runs, run, count, registers[r], block)
            else:
                write_columns(columns, p, runs, run, count, _MOST, block)
        registers[0], registers[1] = index + n, p + n
        done += n


class ExactAssembly(Assembly):
    """Terms in float64, missing before their first bar."""

    LOAD = LOAD
    WRITE = WRITE
    LANES = {"ema": EMA, "rsi": RSI}  # noqa: RUF012
    SUM_ROWS = SUM_ROWS
    ZERO_BEFORE_FIRST = False

    where = partialmethod(Assembly._binary, MULTIPLY)

    def change_of_logarithm(self, a: Term) -> Term:
        """From the bar before."""
        level = self.logarithm(a)
        return self.subtract(level, level.back(1))

    def mean(self, a: Term, window: int) -> Term:
        """Of the last `window` values."""
        return self.band(a, window, means=1.0, deviations=0.0)

    def deviation(self, a: Term, window: int) -> Term:
        """The population's standard deviation of the last `window` values."""
        return self.band(a, window, means=0.0, deviations=1.0)

    def band(self, a: Term, window: int, *, means: float, deviations: float) -> Term:
        """`means` means plus `deviations` deviations of the last `window` values."""
        return self._over_sums(Instruction(op=BAND, a=a, window=window, numbers=(means, deviations)))

    def score(self, a: Term, window: int) -> Term:
        """The z-score of a value within the last `window` values."""
        return self._over_sums(Instruction(op=SCORE, a=a, window=window))

    def total(self, a: Term) -> Term:
        """The sum of all values so far."""
        return self._emit(Instruction(op=TOTAL, a=a), num_registers=2)

    def smooth(self, a: Term, window: int, *, weight: float) -> Term:
        """An exponential average with `weight` for a new value; it begins as the mean of the first `window` values."""
        return self._emit(Instruction(op=SMOOTH, a=a, window=window, numbers=(weight, 0.0)), num_registers=2)

    def average(self, a: Term, window: int) -> Term:
        """An exponential average; it starts as the mean of the first `window` values."""
        return self.smooth(a, window, weight=ema_weight(window))

    def _over_sums(self, instruction: Instruction) -> Term:
        sums = self._running_sums(SUMS, instruction.a, num_registers=3)
        self.history = max(self.history, instruction.window)
        return self._emit(replace(instruction, row=sums.row, register=sums.register))

    def lane_numbers(self, lane: Lane) -> Numbers:
        """The window and the weight of a new value."""
        return float(lane.window), ema_weight(lane.window) if lane.kind == "ema" else 1.0 / lane.window


def ema_weight(window: int) -> float:
    """The weight of a new value in an exponential average."""
    return 2.0 / (window + 1)

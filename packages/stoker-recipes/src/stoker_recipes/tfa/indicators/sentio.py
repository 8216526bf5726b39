"""The arithmetic of Sentio's C++ builder, bit for bit: float32 except where the builder has a double, 0 before the first bar of
an indicator, and no missing values: a comparison with NaN is false, so a NaN is kept, skipped, or turns into 0, as in the builder.

Every loop computes the recurrence in the order of the builder; nothing may be rearranged here. `SentioAssembly` has the instructions
of this arithmetic for the definitions in operators.py.
"""

from __future__ import annotations

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
    open_block,
    part,
    write_columns,
)

LOAD, LOAD_WHOLE, SUMS, SCORE, MEAN, DEVIATION, WINDOW_SUM, TOTAL, SMOOTH, WILDER, DECAY, EMA, RSI, WRITE = range(40, 54)
QUOTIENT, MAXIMUM, GREATER, WHERE, LOG, MAX_ELEMENT, REPEATED_SUM = range(54, 61)
SUM_ROWS = 2
"""Running sums of a column: of its values and of their squares."""

_TINY = np.float32(1e-12)
_FLAT = np.float32(1e-8)
_ZERO, _ONE, _HUNDRED = np.float32(0), np.float32(1), np.float32(100)
_ANY = np.float32(np.inf)


@part
def load(source: Array, whole: bool, y: Array) -> None:
    """Take in values; those of a `whole` column (volume) are truncated to integers."""
    for t in range(len(y)):
        y[t] = np.trunc(source[t]) if whole else source[t]


@part
def run_sums(x: Array, p: int, n: int, sums: Array, row: int) -> None:
    """Double sums from the first bar on; a square is rounded to float32 before it is added."""
    values, squares = sums[row], sums[row + 1]
    value, square = values[p - 1], squares[p - 1]
    for t in range(n):
        value += x[t]
        square += x[t] * x[t]
        values[p + t], squares[p + t] = value, square


@part
def score(x: Array, sums: Array, row: int, p: int, window: float, y: Array) -> None:
    """Deviations from the mean of the window; 0 where the deviation is hardly more than 0."""
    n, first = len(y), p - int(window)
    s1, s0 = sums[row, p : p + n], sums[row, first : first + n]
    q1, q0 = sums[row + 1, p : p + n], sums[row + 1, first : first + n]
    for t in range(n):
        mean = (s1[t] - s0[t]) / window
        variance = (q1[t] - q0[t]) / window - mean * mean
        deviation = np.float32(np.sqrt(variance if variance > 0.0 else 0.0))
        y[t] = (x[t] - mean) / deviation if deviation > _FLAT else 0.0


@part
def mean(x: Array, window: int, index: int, registers: Array, r: int, y: Array) -> None:
    """A mean from a double that gains the new value and then loses the old one; `x` begins `window` bars before the block."""
    held = registers[r]
    for t in range(len(y)):
        held += x[t + window]
        if index + t >= window:
            held -= x[t]
        y[t] = held / window if index + t >= window - 1 else 0.0
    registers[r] = held


@part
def deviation(x: Array, window: int, index: int, registers: Array, r: int, y: Array) -> None:
    """The deviation of the bars before this one; what the sums gain is rounded to float32. `x` begins `window` bars earlier."""
    held, squares = registers[r], registers[r + 1]
    for t in range(len(y)):
        new = x[t + window]
        if index + t < window:
            held += new
            squares += new * new
            y[t] = 0.0
        else:
            center = held / window
            variance = squares / window - center * center
            y[t] = np.sqrt(variance if variance > 0.0 else 0.0)
            held += new - x[t]
            squares += new * new - x[t] * x[t]
    registers[r], registers[r + 1] = held, squares


@part
def compare(op: int, a: Array, b: Array, y: Array) -> None:
    """Operations whose result in C++ differs from the exact arithmetic for missing values."""
    for t in range(len(y)):
        if op == QUOTIENT:
            y[t] = a[t] / b[t]
        elif op == MAXIMUM:
            y[t] = b[t] if a[t] < b[t] else a[t]
        elif op == GREATER:
            y[t] = _ONE if a[t] > b[t] else _ZERO
        elif op == WHERE:
            y[t] = b[t] if a[t] > _ZERO else _ZERO
        else:
            y[t] = np.log(a[t])


@part
def max_element(x: Array, window: int, scratch: Array, y: Array) -> None:
    """std::max_element over `window` values up to each bar; `x` begins `window` - 1 bars before the block.

    It begins with the first value and takes a later one only if that is larger. So a NaN at the start of the window is the
    result, a later NaN is skipped, and of equal values (0 and -0) the first is taken. Without NaN, spans of 1, 2, 4, … values
    are merged pairwise in place: reads are ahead of writes.
    """
    n, span = len(x), 1
    for t in range(n):
        scratch[t] = x[t] if x[t] == x[t] else -_ANY
    while 2 * span <= window:
        n -= span
        for t in range(n):
            scratch[t] = scratch[t + span] if scratch[t] < scratch[t + span] else scratch[t]
        span *= 2
    later = scratch[window - span :]
    for t in range(len(y)):
        largest = later[t] if scratch[t] < later[t] else scratch[t]
        y[t] = largest if x[t] == x[t] else x[t]


@part
def repeated_sum(x: Array, times: int, y: Array) -> None:
    """Each value, added to 0 `times` times."""
    for t in range(len(y)):
        y[t] = _ZERO
    for _ in range(times):
        for t in range(len(y)):
            y[t] = y[t] + x[t]


@part
def window_sum(x: Array, window: int, y: Array) -> None:
    """The sum of `window` values up to each bar, the oldest first; `x` begins `window` - 1 bars before the block."""
    for k in range(window):
        values = x[k:]
        for t in range(len(y)):
            y[t] = (y[t] if k else _ZERO) + values[t]


@part
def recur(op: int, x: Array, window: int, weight: float, index: int, registers: Array, r: int, y: Array) -> None:
    """A recurrence from bar to bar.

    TOTAL is the sum of all values. SMOOTH is an average that begins with the first value. WILDER is Wilder's average from bar
    `window` on, where it is the mean of bars 1 to `window`. DECAY is Wilder's sum: of bars 1 to `window`, and from then on with
    a part taken away for each value that is added.
    """
    held, size, k = np.float32(registers[r]), np.float32(window), np.float32(weight)
    for t in range(len(y)):
        i = index + t
        if op == TOTAL:
            held += x[t]
        elif op == SMOOTH:
            held = k * x[t] + (_ONE - k) * held if i else x[t]
        elif i and op == WILDER:
            held = (held if i <= window else held * (size - _ONE)) + x[t]
            held = held / size if i >= window else held
        elif i:
            held = (held if i <= window else held - held / size) + x[t]
        y[t] = held if op != WILDER or i >= window else _ZERO
    registers[r] = held


@part
def ema_lanes(x: Array, lanes: Array, begin: int, size: int, index: int, runs: Array, run: int, count: int, out: Array) -> None:
    """SMOOTH of one column for many windows side by side, written straight into the rows of the result."""
    averages, weights, rests = lanes[0, begin : begin + size], lanes[2, begin : begin + size], lanes[3, begin : begin + size]
    for t in range(len(out)):
        begun = index + t > 0
        for j in range(size):
            averages[j] = weights[j] * x[t] + rests[j] * averages[j] if begun else x[t]
        for i in range(run, run + count):
            y, average = out[t, runs[i, 1] : runs[i, 1] + runs[i, 2]], averages[runs[i, 0] :]
            for j in range(len(y)):
                y[j] = average[j] if average[j] == average[j] else np.nan  # as in write_columns


@part
def rsi_lanes(x: Array, lanes: Array, begin: int, size: int, index: int, runs: Array, run: int, count: int, out: Array) -> None:
    """RSI for many windows side by side: WILDER of gains and losses, 0 where there are no losses, from bar `window` + 1 on.

    `x` begins one bar before the block.
    """
    gains, losses, windows = lanes[0, begin : begin + size], lanes[1, begin : begin + size], lanes[2, begin : begin + size]
    for t in range(len(out)):
        i = np.float32(index + t)
        change = x[t + 1] - x[t] if index + t else _ZERO
        gain, loss = _ZERO if change < _ZERO else change, _ZERO if -change < _ZERO else -change  # keeps a NaN
        for j in range(size):
            up = (gains[j] if i <= windows[j] else gains[j] * (windows[j] - _ONE)) + gain
            down = (losses[j] if i <= windows[j] else losses[j] * (windows[j] - _ONE)) + loss
            gains[j] = up / windows[j] if i >= windows[j] else up
            losses[j] = down / windows[j] if i >= windows[j] else down
        for k in range(run, run + count):
            first = runs[k, 0]
            y, window = out[t, runs[k, 1] : runs[k, 1] + runs[k, 2]], windows[first:]
            rise, fall = gains[first:], losses[first:]
            for j in range(len(y)):
                strength = rise[j] / fall[j] if fall[j] > _TINY else _ZERO
                percent = _HUNDRED - _HUNDRED / (_ONE + strength) if i > window[j] else _ZERO
                y[j] = percent if percent == percent else np.nan


@kernel
def advance(
    program: Array, numbers: Array, runs: Array,
    columns: Array, sums: Array, lanes: Array, registers: Array,
    starts: Array, sources: Array, out: Array,
    history: int, num_live: int, emit_from: int, pad: float,
) -> None:  # fmt: skip
    """Compute the rows of `out` from the bars in `sources` [kinds, bars], and move the state on.

    `starts` are the bars where another series begins. An instruction's column is 0 before its first bar, and rows before `emit_from`
    are `pad`.
    """
    done, num_begun = 0, 0
    while done < len(out):
        starts_here = num_begun < len(starts) and starts[num_begun] == done
        num_begun += starts_here
        index, p = open_block(starts_here, (columns, sums, lanes, registers), num_live, history, 0.0)
        end = starts[num_begun] if num_begun < len(starts) else len(out)
        n = min(end - done, columns.shape[1] - p)
        bars, block = sources[:, done : done + n], out[done : done + n]
        for i in range(len(program)):
            op, w, r, row, run, count = program[i, 0], program[i, 6], program[i, 8], program[i, 9], program[i, 10], program[i, 11]
            x, z = columns[program[i, 2], p - program[i, 3] : p + n], columns[program[i, 4], p - program[i, 5] : p + n]
            y = columns[program[i, 1], p : p + n]
            if op < HIGHEST:
                compute(op, x, z, np.float32(numbers[i, 0]), np.float32(numbers[i, 1]), y)
            elif op == DISTANCE:
                distance(x, z, w, y)
            elif QUOTIENT <= op <= LOG:
                compare(op, x, z, y)
            elif op == MAX_ELEMENT:
                max_element(x, w, columns[program[i, 4]], y)
            elif op == REPEATED_SUM:
                repeated_sum(x, w, y)
            elif op in (LOAD, LOAD_WHOLE):
                load(bars[row], op == LOAD_WHOLE, y)
            elif op == SUMS:
                run_sums(x, p, n, sums, row)
            elif op == SCORE:
                score(x, sums, row, p, float(w), y)
            elif op == MEAN:
                mean(x, w, index, registers, r, y)
            elif op == DEVIATION:
                deviation(x, w, index, registers, r, y)
            elif op == WINDOW_SUM:
                window_sum(x, w, y)
            elif op in (TOTAL, SMOOTH, WILDER, DECAY):
                recur(op, x, w, numbers[i, 0], index, registers, r, y)
            elif op == EMA:
                ema_lanes(x, lanes, row, w, index, runs, run, count, block)
            elif op == RSI:
                rsi_lanes(x, lanes, row, w, index, runs, run, count, block)
            else:
                write_columns(columns, p, runs, run, count, _ANY, block)
            for t in range(min(n, program[i, 7] - index)):
                y[t] = _ZERO
        for t in range(min(n, emit_from - index)):
            for feature in range(block.shape[1]):
                block[t, feature] = pad
        registers[0], registers[1] = index + n, p + n
        done += n


TINY = 1e-12
FLAT = 1e-8


class SentioAssembly(Assembly):
    """Terms in float32, 0 before their first bar. A NaN does what it does in C++: a comparison with it is false."""

    LOAD = LOAD
    WRITE = WRITE
    LANES = {"ema": EMA, "rsi": RSI}  # noqa: RUF012
    SUM_ROWS = SUM_ROWS
    ZERO_BEFORE_FIRST = True

    def _load(self, name: str) -> int:
        return LOAD_WHOLE if name == "volume" else LOAD

    def change_of_logarithm(self, a: Term) -> Term:
        """From the bar before; values below 1e-12 count as that."""
        level = self.logarithm(self.larger(a, TINY))
        return self.subtract(level, level.back(1), first=1)

    divide = partialmethod(Assembly._binary, QUOTIENT)  # infinite or NaN where `b` is 0
    larger = partialmethod(Assembly._binary, MAXIMUM)  # as std::max finds it: `b` where a < b, else `a`, also where one is NaN
    above = partialmethod(Assembly._binary, GREATER)  # 1 where a > b, else 0, also where one of them is NaN
    both = partialmethod(Assembly._binary, MULTIPLY)  # 1 where two conditions are 1, else 0
    where = partialmethod(Assembly._binary, WHERE)  # the value `b` where the condition `a` is 1, else 0
    logarithm = partialmethod(Assembly._unary, LOG)  # -inf for 0, NaN for negative values

    def highest(self, a: Term, window: int) -> Term:
        """The largest of the last `window` values as std::max_element finds it: NaN where the first is, other NaN are skipped."""
        return self._emit(Instruction(op=MAX_ELEMENT, a=a.back(window - 1), b=self._scratch(), window=window))

    def lowest(self, a: Term, window: int) -> Term:
        """The smallest of the last `window` values, as std::min_element finds it."""
        return self.multiply(self.highest(self.multiply(a, -1.0), window), -1.0)  # keeps the sign of 0, as 0 - a would not

    def mean(self, a: Term, window: int) -> Term:
        """Of the last `window` values; a window of 1 is the value itself."""
        if window <= 1:
            return a
        return self._emit(Instruction(op=MEAN, a=a.back(window), window=window), num_registers=1)

    def deviation(self, a: Term, window: int) -> Term:
        """Of the `window` values before this bar."""
        return self._emit(Instruction(op=DEVIATION, a=a.back(window), window=window), num_registers=2)

    def score(self, a: Term, window: int) -> Term:
        """Deviations from the mean of the last `window` values."""
        sums = self._running_sums(SUMS, a, num_registers=0)
        self.history = max(self.history, window)
        return self._emit(Instruction(op=SCORE, a=a, row=sums.row, window=window, first=window))

    def window_sum(self, a: Term, window: int) -> Term:
        """Of the last `window` values, added up again at each bar."""
        return self._emit(Instruction(op=WINDOW_SUM, a=a.back(window - 1), window=window))

    def repeated_mean(self, a: Term, window: int) -> Term:
        """The value added up `window` times and divided by `window`, which is the value but for rounding."""
        return self.divide(self._emit(Instruction(op=REPEATED_SUM, a=a, window=window)), float(window))

    def _recur(self, op: int, a: Term, window: int = 0, weight: float = 0.0) -> Term:
        return self._emit(Instruction(op=op, a=a, window=window, numbers=(weight, 0.0)), num_registers=1)

    total = partialmethod(_recur, TOTAL)  # the sum of all values so far
    wilder = partialmethod(_recur, WILDER)  # Wilder's average of the values from bar 1 on
    decay = partialmethod(_recur, DECAY)  # Wilder's sum of the values from bar 1 on

    def average(self, a: Term, window: int) -> Term:
        """An exponential average that begins with the first value."""
        return self._recur(SMOOTH, a, weight=2.0 / (window + 1))

    def lane_numbers(self, lane: Lane) -> Numbers:
        """The weights of the new and of the old, or the window."""
        if lane.kind == "rsi":
            return float(lane.window), 0.0
        weight = np.float32(2.0 / (lane.window + 1))
        return float(weight), float(np.float32(1) - weight)

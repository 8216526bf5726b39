"""The words of Sentio's arithmetic, for definitions; sentio_kernel.py says what they mean."""

from __future__ import annotations

import numpy as np

from stoker.encode.indicators import sentio_kernel as kernels
from stoker.encode.indicators.assembly import Assembly, Instruction, Lane, Numbers, Term

TINY = 1e-12
FLAT = 1e-8


class SentioAssembly(Assembly):
    """Terms in float32, 0 before their first bar. A NaN does what it does in C++: a comparison with it is false."""

    LOAD = kernels.LOAD
    WRITE = kernels.WRITE
    LANES = {"ema": kernels.EMA, "rsi": kernels.RSI}  # noqa: RUF012
    SUM_ROWS = kernels.SUM_ROWS

    def _load(self, name: str) -> int:
        return kernels.LOAD_WHOLE if name == "volume" else kernels.LOAD

    def source(self, name: str) -> Term:
        """A column of the bars, or the change of the logarithm of the close."""
        return self.change_of_logarithm(self.column("close")) if name == "logret" else self.column(name)

    def change_of_logarithm(self, a: Term) -> Term:
        """From the bar before; values below 1e-12 count as that."""
        level = self.logarithm(self.larger(a, TINY))
        return self.subtract(level, level.back(1), first=1)

    def divide(self, a: Term, b: Term | float, *, first: int = 0) -> Term:
        """The quotient, infinite or NaN where `b` is 0."""
        return self._simple(kernels.QUOTIENT, a, b, first=first)

    def larger(self, a: Term | float, b: Term | float, *, first: int = 0) -> Term:
        """The larger of the two as std::max finds it: `b` where a < b, else `a`, also where one of them is NaN."""
        return self._simple(kernels.MAXIMUM, a, b, first=first)

    def above(self, a: Term, b: Term | float) -> Term:
        """1 where a > b, else 0, also where one of them is NaN."""
        return self._simple(kernels.GREATER, a, b)

    def both(self, a: Term, b: Term) -> Term:
        """1 where two conditions are 1, else 0."""
        return self.multiply(a, b)

    def where(self, condition: Term, value: Term, *, first: int = 0) -> Term:
        """The value where the condition is 1, else 0."""
        return self._simple(kernels.WHERE, condition, value, first=first)

    def logarithm(self, a: Term) -> Term:
        """The natural logarithm: -inf of 0, NaN of what is below it."""
        return self._simple(kernels.LOG, a, a)

    def highest(self, a: Term, window: int) -> Term:
        """The largest of the last `window` values as std::max_element finds it: NaN where the first is, other NaN are skipped."""
        return self._emit(Instruction(op=kernels.MAX_ELEMENT, a=a.back(window - 1), b=self._scratch(), window=window))

    def lowest(self, a: Term, window: int) -> Term:
        """The smallest of the last `window` values, as std::min_element finds it."""
        return self.multiply(self.highest(self.multiply(a, -1.0), window), -1.0)  # keeps the sign of 0, as 0 - a would not

    def mean(self, a: Term, window: int) -> Term:
        """Of the last `window` values; a window of 1 is the value itself."""
        if window <= 1:
            return a
        return self._emit(Instruction(op=kernels.MEAN, a=a.back(window), window=window), num_registers=1)

    def deviation(self, a: Term, window: int) -> Term:
        """Of the `window` values before this bar."""
        return self._emit(Instruction(op=kernels.DEVIATION, a=a.back(window), window=window), num_registers=2)

    def score(self, a: Term, window: int) -> Term:
        """Deviations from the mean of the last `window` values."""
        sums = self._running_sums(kernels.SUMS, a, num_registers=0)
        self.history = max(self.history, window)
        return self._emit(Instruction(op=kernels.SCORE, a=a, row=sums.row, window=window, first=window))

    def window_sum(self, a: Term, window: int) -> Term:
        """Of the last `window` values, added up anew at each bar."""
        return self._emit(Instruction(op=kernels.WINDOW_SUM, a=a.back(window - 1), window=window))

    def repeated_mean(self, a: Term, window: int) -> Term:
        """The value added up `window` times and divided by `window`, which is the value but for rounding."""
        return self.divide(self._emit(Instruction(op=kernels.REPEATED_SUM, a=a, window=window)), float(window))

    def total(self, a: Term) -> Term:
        """The sum of all values so far."""
        return self._emit(Instruction(op=kernels.TOTAL, a=a), num_registers=1)

    def smooth(self, a: Term, window: int) -> Term:
        """An exponential average that begins with the first value."""
        one = Instruction(op=kernels.SMOOTH, a=a, numbers=(2.0 / (window + 1), 0.0))
        return self._emit(one, num_registers=1)

    def wilder(self, a: Term, window: int) -> Term:
        """Wilder's average of the values from bar 1 on."""
        return self._emit(Instruction(op=kernels.WILDER, a=a, window=window), num_registers=1)

    def decay(self, a: Term, window: int) -> Term:
        """Wilder's sum of the values from bar 1 on."""
        return self._emit(Instruction(op=kernels.DECAY, a=a, window=window), num_registers=1)

    def lane_numbers(self, lane: Lane) -> Numbers:
        """The weights of the new and of the old, or the window."""
        if lane.kind == "rsi":
            return float(lane.window), 0.0
        weight = np.float32(2.0 / (lane.window + 1))
        return float(weight), float(np.float32(1) - weight)

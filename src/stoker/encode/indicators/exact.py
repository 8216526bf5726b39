"""The words of the exact arithmetic, for definitions; exact_kernel.py says what they mean."""

from __future__ import annotations

from dataclasses import replace

from stoker.encode.indicators import exact_kernel as kernels
from stoker.encode.indicators.assembly import Assembly, Instruction, Lane, Numbers, Term

PERIOD = 1024
"""Running sums start anew after so many bars."""


class ExactAssembly(Assembly):
    """Terms in float64, missing before their first bar."""

    LOAD = kernels.LOAD
    WRITE = kernels.WRITE
    LANES = {"ema": kernels.EMA, "rsi": kernels.RSI}  # noqa: RUF012
    SUM_ROWS = kernels.SUM_ROWS

    def source(self, name: str) -> Term:
        """A column of the bars, or the change of the logarithm of the close."""
        if name != "logret":
            return self.column(name)
        level = self.logarithm(self.column("close"))
        return self.subtract(level, level.back(1))

    def mean(self, a: Term, window: int) -> Term:
        """Of the last `window` values."""
        return self.band(a, window, means=1.0, deviations=0.0)

    def deviation(self, a: Term, window: int) -> Term:
        """The population's standard deviation of the last `window` values."""
        return self.band(a, window, means=0.0, deviations=1.0)

    def band(self, a: Term, window: int, *, means: float, deviations: float) -> Term:
        """So many means and so many deviations of the last `window` values together."""
        return self._over_sums(Instruction(op=kernels.BAND, a=a, window=window, numbers=(means, deviations)))

    def score(self, a: Term, window: int) -> Term:
        """How many deviations a value lies above the mean, both of the last `window` values."""
        return self._over_sums(Instruction(op=kernels.SCORE, a=a, window=window))

    def total(self, a: Term) -> Term:
        """The sum of all values so far."""
        return self._emit(Instruction(op=kernels.TOTAL, a=a), num_registers=2)

    def smooth(self, a: Term, window: int, *, weight: float) -> Term:
        """An average in which a new value has `weight`; it begins as the mean of the first `window` values."""
        one = Instruction(op=kernels.SMOOTH, a=a, window=window, numbers=(weight, 0.0))
        return self._emit(one, num_registers=2)

    def _over_sums(self, one: Instruction) -> Term:
        sums = self._running_sums(kernels.SUMS, one.a, num_registers=3)
        self.history = max(self.history, one.window)
        return self._emit(replace(one, row=sums.row, register=sums.register))

    def lane_numbers(self, lane: Lane) -> Numbers:
        """The window and the weight of a new value."""
        return float(lane.window), ema_weight(lane.window) if lane.kind == "ema" else 1.0 / lane.window

    def _simple(self, op: int, a: Term | float, b: Term | float, *, first: int = 0, numbers: Numbers = (0.0, 0.0)) -> Term:
        return super()._simple(op, a, b, numbers=numbers)  # what lies before the first bar is missing, not 0


def ema_weight(window: int) -> float:
    """The weight of a new value in an exponential average."""
    return 2.0 / (window + 1)

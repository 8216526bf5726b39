"""Assembly: the definitions of operators become instructions.

A definition calls the methods of an assembly as it would call functions of whole columns, and gets terms: columns that a
kernel will fill. The same call with the same arguments is the same column, so features share what they have in common.
What only one of the two arithmetics knows is a method of its own assembly (exact.py, sentio.py).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from stoker.encode.indicators import instructions as simple

Numbers = tuple[float, float]


class Term(NamedTuple):
    """A column, read so many bars back."""

    column: int
    """Negative for a constant: those get their places last."""
    lag: int = 0

    def back(self, bars: int) -> Term:
        """The same column earlier."""
        return Term(self.column, self.lag + bars)


NONE = Term(0)


class Lane(NamedTuple):
    """An average that is computed side by side with those of the same kind and column, and only written to the result."""

    kind: Literal["ema", "rsi"]
    source: Term
    window: int


Output = Term | Lane


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """One row of a program; its fields are those of `Program.instructions`."""

    op: int
    out: int = 0
    a: Term = NONE
    b: Term = NONE
    window: int = 0
    first: int = 0
    register: int = 0
    row: int = 0
    run: int = 0
    count: int = 0
    numbers: Numbers = (0.0, 0.0)


class Assembly(ABC):
    """The words that both arithmetics know. `first` is the bar before which a column is 0 where 0 stands for missing."""

    LOAD: int
    WRITE: int
    LANES: dict[str, int]
    SUM_ROWS: int

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.constants: list[float] = []
        self.sources: list[str] = []
        self.num_live = 0
        self.num_registers = 3  # behind those that a kernel keeps for itself
        self.num_sum_rows = 0
        self.history = 1
        self._columns: dict[Instruction | str, Term] = {}
        self._sums: dict[Term, Instruction] = {}

    @abstractmethod
    def source(self, name: str) -> Term:
        """What a feature is computed from: a column of the bars, or `logret`."""

    @abstractmethod
    def lane_numbers(self, lane: Lane) -> Numbers:
        """The two numbers that the kernel keeps for a lane."""

    def column(self, name: str) -> Term:
        """A column of the bars."""
        if name not in self._columns:
            self.sources.append(name)
            self._columns[name] = self._emit(Instruction(op=self._load(name), row=len(self.sources) - 1))
        return self._columns[name]

    def _load(self, name: str) -> int:
        return self.LOAD

    def constant(self, value: float) -> Term:
        """The same number at every bar."""
        if value not in self.constants:
            self.constants.append(value)
        return Term(-1 - self.constants.index(value))

    def add(self, a: Term, b: Term | float, *, first: int = 0) -> Term:
        """The sum."""
        return self._simple(simple.ADD, a, b, first=first)

    def subtract(self, a: Term | float, b: Term, *, first: int = 0) -> Term:
        """The difference."""
        return self._simple(simple.SUBTRACT, a, b, first=first)

    def multiply(self, a: Term, b: Term | float, *, first: int = 0) -> Term:
        """The product."""
        return self._simple(simple.MULTIPLY, a, b, first=first)

    def divide(self, a: Term, b: Term | float, *, first: int = 0) -> Term:
        """The quotient, missing where `b` is 0."""
        return self._simple(simple.DIVIDE, a, b, first=first, numbers=(0.0, math.nan))

    def ratio(self, a: Term, b: Term, *, limit: float = 0.0, otherwise: float, first: int = 0) -> Term:
        """The quotient, and `otherwise` where `b` is not above `limit`."""
        return self._simple(simple.RATIO, a, b, first=first, numbers=(limit, otherwise))

    def larger(self, a: Term, b: Term | float, *, first: int = 0) -> Term:
        """The larger of the two."""
        return self._simple(simple.LARGER, a, b, first=first)

    def above(self, a: Term, b: Term) -> Term:
        """1 where a > b, else 0."""
        return self._simple(simple.ABOVE, a, b)

    def absolute(self, a: Term) -> Term:
        """The value without its sign."""
        return self._simple(simple.ABSOLUTE, a, a)

    def logarithm(self, a: Term) -> Term:
        """The natural logarithm, missing where there is none."""
        return self._simple(simple.LOGARITHM, a, a)

    def root(self, a: Term) -> Term:
        """The square root."""
        return self._simple(simple.ROOT, a, a)

    def highest(self, a: Term, window: int) -> Term:
        """The largest of the last `window` values."""
        one = Instruction(op=simple.HIGHEST, a=a.back(window - 1), b=self._scratch(), window=window)
        return self._emit(one)

    def lowest(self, a: Term, window: int) -> Term:
        """The smallest of the last `window` values."""
        return self.subtract(0.0, self.highest(self.subtract(0.0, a), window))

    def distance(self, a: Term, center: Term, window: int) -> Term:
        """The mean of |a - center| over the last `window` values of `a`, with the center of this bar."""
        one = Instruction(op=simple.DISTANCE, a=a.back(window - 1), b=center, window=window)
        return self.divide(self._emit(one), float(window))

    def _scratch(self) -> Term:
        """A column that any instruction may write to while it runs."""
        if "scratch" not in self._columns:
            self._columns["scratch"] = Term(self.num_live)
            self.num_live += 1
        return self._columns["scratch"]

    def _simple(self, op: int, a: Term | float, b: Term | float, *, first: int = 0, numbers: Numbers = (0.0, 0.0)) -> Term:
        a = a if isinstance(a, Term) else self.constant(a)
        b = b if isinstance(b, Term) else self.constant(b)
        return self._emit(Instruction(op=op, a=a, b=b, first=first, numbers=numbers))

    def _running_sums(self, op: int, a: Term, *, num_registers: int) -> Instruction:
        """The instruction that keeps running sums of a column."""
        if a not in self._sums:
            self._sums[a] = Instruction(op=op, row=self.num_sum_rows, a=a, register=self.num_registers)
            self.instructions.append(self._sums[a])
            self.num_sum_rows += self.SUM_ROWS
            self.num_registers += num_registers
        return self._sums[a]

    def _emit(self, one: Instruction, num_registers: int = 0) -> Term:
        """Append an instruction with a column of its own, or find the one that is the same.

        Its operands begin as many bars before the block as they are read back; so does the window of an instruction with one.
        """
        self.history = max(self.history, one.a.lag, one.b.lag)
        if one not in self._columns:
            register = self.num_registers if num_registers else one.register
            self.instructions.append(replace(one, out=self.num_live, register=register))
            self._columns[one] = Term(self.num_live)
            self.num_live += 1
            self.num_registers += num_registers
        return self._columns[one]

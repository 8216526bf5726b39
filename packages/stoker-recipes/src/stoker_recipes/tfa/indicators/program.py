"""Programs: the features of a spec as a table of instructions, which a compiled kernel interprets.

    definitions (operators.py) ──► `Assembly`: instructions ──► `link`: `Program` ──► kernel (exact.py, sentio.py)

The kernel is compiled once and never changes with the spec. The functions below that are marked `part` are the instructions that both
arithmetics share; the types are those of the columns, so the same code computes in float32 and in float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
from numba.extending import register_jitable

from stoker.extend import Array

F = TypeVar("F", bound=Callable[..., object])


def part(function: F) -> F:
    """Compile a function into the kernels that call it, with the arithmetic of NumPy; in Python it stays a plain function.

    A kernel of its own would cost a tenth of a second to compile, for an entry point that is not used.
    """
    # Without passes that find nothing to do and without entry points: together 5 % of the time to compile.
    known: F = register_jitable(error_model="numpy", no_rewrites=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)(function)
    return known


Arithmetic = Literal["exact", "sentio"]

BAR = ("open", "high", "low", "close", "volume")
"""The columns of a bar."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """All that an engine needs. Arrays are read-only and may be shared by several engines."""

    arithmetic: Arithmetic
    sources: tuple[str, ...]
    """The columns of a bar that are read, in the order of the kernel."""
    num_features: int
    instructions: Array
    """int64 [instructions, 12]: op, out, a, how far back a, b, how far back b, window (or lanes), first bar, register, row (of the
    sources, sums or lanes), first run, runs."""
    numbers: Array
    """float64 [instructions, 2]: constants of an instruction."""
    runs: Array
    """int64 [runs, 3]: a first lane (or a column), its first feature, how many follow."""
    num_live: int
    """Columns that the kernel writes; those after them are constants."""
    constants: Array
    """float64: one column each."""
    lanes: Array
    """float64 [4, lanes]: two initial averages and two numbers per lane."""
    num_sum_rows: int
    num_registers: int
    history: int
    """Number of earlier bars that the columns keep."""
    emit_from: int
    pad: float

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the columns."""
        return np.dtype(np.float64 if self.arithmetic == "exact" else np.float32)


# ---- instructions that both arithmetics share, one loop over a block of bars each ----
# A column is one row of a matrix, `history` earlier bars followed by the block at position `p`; an operand is read with a lag. The
# result of a missing value (NaN) is missing, whichever operand it is, and a bar never reads a later one.

Number = float | np.floating[Any]
State = tuple[Array, Array, Array, Array]
"""Columns, sums, lanes and registers."""

ADD, SUBTRACT, MULTIPLY, DIVIDE, LARGER, ABSOLUTE, LOGARITHM, ROOT, ABOVE, RATIO, HIGHEST, DISTANCE = range(12)


@part
def compute(op: int, a: Array, b: Array, limit: Number, otherwise: Number, y: Array) -> None:
    """One number per bar from one or two others, for every bar of the block.

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
        # One loop for both: a quotient is a ratio for which only 0 is too small.
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

    Spans of 1, 2, 4, … values are merged pairwise, so the cost grows with the logarithm of the window.
    """
    here, n, span = x, len(x), 1
    while 2 * span <= window:
        n -= span
        later = here[span : span + n]
        for t in range(n):  # in place from the second time on: reads are ahead of writes
            scratch[t] = here[t] if here[t] > later[t] or here[t] != here[t] else later[t]
        here = scratch
        span *= 2
    later = here[window - span :]
    for t in range(len(y)):
        y[t] = here[t] if here[t] > later[t] or here[t] != here[t] else later[t]


@part
def distance(x: Array, center: Array, window: int, y: Array) -> None:
    """The sum of |x - center| over `window` values up to each bar, the oldest first; `x` begins `window` - 1 bars earlier."""
    for k in range(window):
        values = x[k:]
        for t in range(len(y)):
            y[t] = (y[t] if k else 0) + abs(values[t] - center[t])


@part
def open_block(starts_here: bool, state: State, num_live: int, history: int, before: float) -> tuple[int, int]:
    """Make room for a block of bars; returns the number of bars so far and the position of the block in the columns.

    Registers 0 and 1 are these two, the position 0 at the start of a series. Where a series starts, all registers and the averages in
    the first two rows of the lanes are reset. Where the columns are full, the last `history` values of each row move to its front; at
    the start of a series these are `before`, and 0 for sums.
    """
    columns, sums, lanes, registers = state
    if starts_here:
        for r in range(len(registers)):
            registers[r] = 0
        for j in range(lanes.shape[1]):
            lanes[0, j] = lanes[1, j] = 0
    index, p = int(registers[0]), int(registers[1])
    if p == 0 or p == columns.shape[1]:
        for i in range(num_live):
            for t in range(history):
                columns[i, t] = columns[i, p - history + t] if p else before
        for i in range(len(sums)):
            for t in range(history):
                sums[i, t] = sums[i, p - history + t] if p else 0.0
        p = history
    return index, p


@part
def write_columns(columns: Array, place: int, runs: Array, first: int, count: int, most: Number, out: Array) -> None:
    """Copy finished columns into the rows of the result, 16 rows at a time so that both sides stay in the nearest cache.

    A value larger than `most` is missing. NaN is written as NumPy's: the bits of a computed NaN depend on the machine.
    """
    for top in range(0, len(out), 16):
        n = min(16, len(out) - top)
        for i in range(first, first + count):
            column = columns[runs[i, 0], place + top : place + top + n]
            feature = runs[i, 1]
            for t in range(n):
                out[top + t, feature] = column[t] if abs(column[t]) <= most else np.nan


# ---- assembly: the definitions of operators become instructions ----
# A definition calls the methods of an assembly as it would call functions of whole columns, and gets terms: columns that the kernel
# will fill. The same call with the same arguments is the same column, so features share common parts. Instructions of only one
# arithmetic are methods of its own assembly (exact.py, sentio.py).

Numbers = tuple[float, float]


class Term(NamedTuple):
    """A column, read `lag` bars back."""

    column: int
    """Negative for a constant: constants are placed last."""
    lag: int = 0

    def back(self, bars: int) -> Term:
        """The same column earlier."""
        return Term(self.column, self.lag + bars)


NONE = Term(0)


class Lane(NamedTuple):
    """An average that is computed together with those of the same kind and column, and only written to the result."""

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
    """The instructions of both arithmetics. `first` is the bar before which a column is 0 where 0 stands for missing."""

    LOAD: int
    WRITE: int
    LANES: dict[str, int]
    SUM_ROWS: int
    ZERO_BEFORE_FIRST: bool

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.constants: list[float] = []
        self.sources: list[str] = []
        self.num_live = 0
        self.num_registers = 3  # after those that the kernel reserves
        self.num_sum_rows = 0
        self.history = 1
        self._columns: dict[Instruction | str, Term] = {}
        self._sums: dict[Term, Instruction] = {}

    @abstractmethod
    def change_of_logarithm(self, a: Term) -> Term:
        """The change of the logarithm from the bar before."""

    where: Callable[..., Term]
    """The value `b` where the condition `a` is 1, else 0."""
    total: Callable[[Term], Term]
    """The sum of all values so far."""

    @abstractmethod
    def mean(self, a: Term, window: int) -> Term:
        """The mean of the last `window` values."""

    @abstractmethod
    def deviation(self, a: Term, window: int) -> Term:
        """The standard deviation over a window."""

    @abstractmethod
    def average(self, a: Term, window: int) -> Term:
        """An exponential average, whose weight of a new value is 2 / (window + 1)."""

    @abstractmethod
    def score(self, a: Term, window: int) -> Term:
        """The z-score of a value within a window."""

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

    def _binary(self, op: int, a: Term | float, b: Term | float, *, first: int = 0, numbers: Numbers = (0.0, 0.0)) -> Term:
        a = a if isinstance(a, Term) else self.constant(a)
        b = b if isinstance(b, Term) else self.constant(b)
        return self._emit(Instruction(op=op, a=a, b=b, first=first if self.ZERO_BEFORE_FIRST else 0, numbers=numbers))

    def _unary(self, op: int, a: Term) -> Term:
        return self._binary(op, a, a)

    add = partialmethod(_binary, ADD)
    subtract = partialmethod(_binary, SUBTRACT)
    multiply = partialmethod(_binary, MULTIPLY)
    divide = partialmethod(_binary, DIVIDE, numbers=(0.0, math.nan))  # missing where `b` is 0
    larger = partialmethod(_binary, LARGER)
    above = partialmethod(_binary, ABOVE)  # 1 where a > b, else 0
    absolute = partialmethod(_unary, ABSOLUTE)
    logarithm = partialmethod(_unary, LOGARITHM)  # missing where the value is not positive
    root = partialmethod(_unary, ROOT)

    def ratio(self, a: Term, b: Term, *, limit: float = 0.0, otherwise: float, first: int = 0) -> Term:
        """The quotient, and `otherwise` where `b` is not above `limit`."""
        return self._binary(RATIO, a, b, first=first, numbers=(limit, otherwise))

    def highest(self, a: Term, window: int) -> Term:
        """The largest of the last `window` values."""
        return self._emit(Instruction(op=HIGHEST, a=a.back(window - 1), b=self._scratch(), window=window))

    def lowest(self, a: Term, window: int) -> Term:
        """The smallest of the last `window` values."""
        return self.subtract(0.0, self.highest(self.subtract(0.0, a), window))

    def distance(self, a: Term, center: Term, window: int) -> Term:
        """The mean of |a - center| over the last `window` values of `a`, with the center of this bar."""
        return self.divide(self._emit(Instruction(op=DISTANCE, a=a.back(window - 1), b=center, window=window)), float(window))

    def _scratch(self) -> Term:
        """A column that any instruction may write to while it runs."""
        if "scratch" not in self._columns:
            self._columns["scratch"] = Term(self.num_live)
            self.num_live += 1
        return self._columns["scratch"]

    def _running_sums(self, op: int, a: Term, *, num_registers: int) -> Instruction:
        """The instruction that keeps running sums of a column."""
        if a not in self._sums:
            self._sums[a] = Instruction(op=op, row=self.num_sum_rows, a=a, register=self.num_registers)
            self.instructions.append(self._sums[a])
            self.num_sum_rows += self.SUM_ROWS
            self.num_registers += num_registers
        return self._sums[a]

    def _emit(self, instruction: Instruction, num_registers: int = 0) -> Term:
        """Append an instruction with its own column, or return the column of an identical one.

        Its operands begin `lag` bars before the block; so does the window of an instruction that has one.
        """
        self.history = max(self.history, instruction.a.lag, instruction.b.lag)
        if instruction not in self._columns:
            register = self.num_registers if num_registers else instruction.register
            self.instructions.append(replace(instruction, out=self.num_live, register=register))
            self._columns[instruction] = Term(self.num_live)
            self.num_live += 1
            self.num_registers += num_registers
        return self._columns[instruction]


Run = tuple[int, int, int]


def link(assembly: Assembly, outputs: Sequence[Output], arithmetic: Arithmetic, *, emit_from: int, pad: float) -> Program:
    """The program that computes these outputs, in this order."""

    def place(term: Term) -> int:
        """The column of a term; constants come after those that are written."""
        return term.column if term.column >= 0 else assembly.num_live - 1 - term.column

    table = list(assembly.instructions)
    runs: list[Run] = []
    lanes: list[Numbers] = []
    num_registers = assembly.num_registers
    groups: dict[tuple[str, Term], list[int]] = {}
    for feature, output in enumerate(outputs):
        if isinstance(output, Lane):
            groups.setdefault((output.kind, output.source), []).append(feature)
    for (kind, source), features in groups.items():
        neighbours: list[Run] = []  # lanes of neighbouring features are copied together
        for lane, feature in enumerate(features):
            if neighbours and neighbours[-1][1] + neighbours[-1][2] == feature:
                neighbours[-1] = (*neighbours[-1][:2], neighbours[-1][2] + 1)
            else:
                neighbours.append((lane, feature, 1))
        a = source.back(1) if kind == "rsi" else source
        instruction = Instruction(op=assembly.LANES[kind], a=a, window=len(features), register=num_registers)
        table.append(replace(instruction, row=len(lanes), run=len(runs), count=len(neighbours)))
        runs += neighbours
        lanes += [assembly.lane_numbers(output) for output in outputs if isinstance(output, Lane) and output[:2] == (kind, source)]
        num_registers += 1
    written = [(place(output), feature, 1) for feature, output in enumerate(outputs) if isinstance(output, Term)]
    if written:
        table.append(Instruction(op=assembly.WRITE, run=len(runs), count=len(written)))
        runs += written
    rows = [
        [i.op, i.out, place(i.a), i.a.lag, place(i.b), i.b.lag, i.window, i.first, i.register, i.row, i.run, i.count] for i in table
    ]
    return Program(
        arithmetic=arithmetic,
        sources=tuple(assembly.sources),
        num_features=len(outputs),
        instructions=np.array(rows, dtype=np.int64),
        numbers=np.array([instruction.numbers for instruction in table], dtype=np.float64),
        runs=np.array(runs, dtype=np.int64).reshape(-1, 3),
        num_live=assembly.num_live,
        constants=np.array(assembly.constants, dtype=np.float64),
        lanes=np.concatenate([np.zeros((2, len(lanes))), np.array(lanes, dtype=np.float64).reshape(-1, 2).T]),
        num_sum_rows=assembly.num_sum_rows,
        num_registers=num_registers,
        history=assembly.history,
        emit_from=emit_from,
        pad=pad,
    )

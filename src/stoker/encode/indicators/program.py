"""The program of a spec: its indicators as a table of instructions, which a compiled kernel reads. The kernel never changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Arithmetic = Literal["exact", "sentio"]

BAR = ("open", "high", "low", "close", "volume")
"""What a bar consists of."""


@dataclass(frozen=True, kw_only=True)
class Program:
    """What an engine needs to know. Arrays are read-only and may be shared by many engines."""

    arithmetic: Arithmetic
    sources: tuple[str, ...]
    """The columns of a bar that are read, in the order in which they are given to the kernel."""
    num_features: int
    instructions: Array
    """int64 [instructions, 12]: op, out, a, how far back a, b, how far back b, window (or lanes), first bar, register, row (of the
    sources, sums or lanes), first run, runs."""
    numbers: Array
    """float64 [instructions, 2]: constants of an instruction."""
    runs: Array
    """int64 [runs, 3]: a first lane (or a column), its first feature, how many follow."""
    num_live: int
    """Columns that the kernel writes; those behind them are constants."""
    constants: Array
    """float64: a column each."""
    lanes: Array
    """float64 [4, lanes]: two averages at rest, and two numbers a lane."""
    num_sum_rows: int
    num_registers: int
    history: int
    """How many earlier bars the columns keep."""
    emit_from: int
    pad: float

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the columns."""
        return np.dtype(np.float64 if self.arithmetic == "exact" else np.float32)

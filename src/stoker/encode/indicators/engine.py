"""The engine: a program and the state it has come to. Batch and stream are two ways to move it on.

The state is all that the past leaves behind: it has a fixed size, and an engine that is given it goes on with the same bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.indicators import exact_kernel, sentio_kernel
from stoker.encode.indicators.exact import PERIOD
from stoker.encode.indicators.program import Program
from stoker.errors import OptionError

Array = npt.NDArray[Any]

BLOCK = 512
"""Bars that are computed together: their columns stay in the second cache (benchmarks/bench_indicators.py)."""
NO_STARTS = np.zeros(0, dtype=np.int64)


class Engine:
    """Computes rows of features. Not to be used by two threads at once."""

    def __init__(self, program: Program) -> None:
        self.program = program
        # A block is at least as long as the history, so that moving it costs at most one copy a bar.
        capacity = program.history + max(BLOCK, program.history)
        self._columns = np.zeros((program.num_live + len(program.constants), capacity), dtype=program.dtype)
        self._columns[program.num_live :] = program.constants[:, None]
        self._sums = np.zeros((program.num_sum_rows, capacity))
        self._lanes = program.lanes.astype(program.dtype)
        self._registers = np.zeros(program.num_registers)
        self._kernel = exact_kernel.advance if program.arithmetic == "exact" else sentio_kernel.advance
        # Put together once: a stream passes them with each bar.
        tables = (program.instructions, program.numbers, program.runs)
        self._before = (*tables, self._columns, self._sums, self._lanes, self._registers)
        self._behind = (program.history, program.num_live, PERIOD, program.emit_from, program.pad)

    @property
    def num_bars(self) -> int:
        """Bars of the current series so far."""
        return int(self._registers[0])

    def reset(self) -> None:
        """Begin another series."""
        self._registers[:] = 0
        self._lanes[:2] = 0

    def advance(self, sources: Array, out: Array, starts: Array = NO_STARTS) -> None:
        """Compute the rows of `out` (float32 [bars, features]) from `sources` (float64 [columns, bars]).

        Another series begins at each bar of `starts` (int64, rising). Both arrays are contiguous.
        """
        self._kernel(*self._before, starts, sources, out, *self._behind)

    def state(self) -> dict[str, Array]:
        """A copy of all that the past has left behind."""
        return {
            "columns": self._columns.copy(),
            "sums": self._sums.copy(),
            "lanes": self._lanes.copy(),
            "registers": self._registers.copy(),
        }

    def restore(self, state: Mapping[str, Array]) -> None:
        """Go on from a state of an engine with the same program."""
        own = {"columns": self._columns, "sums": self._sums, "lanes": self._lanes, "registers": self._registers}
        for name, target in own.items():
            found = np.asarray(state[name]) if name in state else None
            if found is None or found.shape != target.shape or found.dtype != target.dtype:
                shape = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
                raise OptionError(
                    f"the state is not one of this spec: {name} is {shape}, expected {target.dtype} of shape {target.shape}."
                )
        place = float(np.asarray(state["registers"])[1])
        if place != 0 and not self.program.history <= place <= self._columns.shape[1]:
            raise OptionError(f"the state is damaged: its place is {place:g}, beyond the {self._columns.shape[1]} of its columns.")
        for name, target in own.items():
            target[...] = state[name]

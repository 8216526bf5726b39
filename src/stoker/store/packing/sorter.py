"""The sorter: blocks in any order become runs. Blocks that come in order go straight to the disk; others are gathered,
sorted in memory, and written as runs of bounded size.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from stoker.store.packing.block import Block, concatenate, sort_block
from stoker.store.packing.run import Layout, Run
from stoker.store.packing.writer import Writer


class Sorter:
    """Takes blocks, writes runs. `runs` are the ones so far; only the last still grows."""

    def __init__(
        self, folder: Path, layout: Layout, writer: Writer, *, sort_time: bool, run_bytes: int, runs: list[Run] | None = None
    ) -> None:
        self.runs = runs or []
        self._gathered_bytes = 0
        self._folder = folder
        self._layout = layout
        self._writer = writer
        self._sort_time = layout.time_index if sort_time else None
        self._run_bytes = run_bytes
        self._gathered: list[Block] = []

    def add(self, block: Block) -> None:
        """Take a block. Its arrays must not change any more."""
        if not self._gathered and block.rises(self._sort_time) and self._follows(block):
            self._last().add(block)
            return
        self._gathered.append(block)
        self._gathered_bytes += block.sorting_bytes
        if self._gathered_bytes >= self._run_bytes:
            self.flush()

    def flush(self) -> None:
        """Sort what was gathered and write it, behind the last run if it fits there."""
        if not self._gathered:
            return
        whole = concatenate(self._gathered)
        self._gathered, self._gathered_bytes = [], 0  # given up before the sort makes its copy
        block = sort_block(whole, self._sort_time)
        del whole
        if not self._follows(block):
            self.runs[-1].finish()
            self.runs[-1].close()  # it is only read from now on; a thousand runs must not hold a thousand descriptors
            self.runs.append(Run.create(self._folder, self.runs[-1].number + 1, self._layout, self._writer))
        self._last().add(block)
        # Arrow keeps what it freed for later; a pack with little memory needs it back now (benchmarks/bench_memory.py).
        pa.default_memory_pool().release_unused()

    def _follows(self, block: Block) -> bool:
        """Whether a sorted block can be written behind all that is in the last run."""
        if not self.runs or not self.runs[-1].num_series or not len(block.keys):
            return True
        first = block.keys[0].as_py()
        filled = block.counts.nonzero()[0]  # a series may begin with segments that have no rows
        if self._sort_time is None or not len(filled) or block.keys[int(filled[0])].as_py() != first:
            return bool(first >= self.runs[-1].last_key)
        # With a time to sort by, a series that goes on must not have to go in between.
        return (first, block.step[self._sort_time][0].item()) >= self.runs[-1].end

    def _last(self) -> Run:
        if not self.runs:
            self.runs.append(Run.create(self._folder, 0, self._layout, self._writer))
        return self.runs[-1]

    def finish(self) -> list[Run]:
        """Write what is left and return all runs, the last one finished too."""
        self.flush()
        if self.runs:
            self.runs[-1].finish()
        return self.runs

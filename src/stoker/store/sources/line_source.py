"""Sources in which a line is a row and Python parses it: what `.ts`, `.arff` and UCR's `.tsv` have in common.

Blocks of whole lines are read in order, tasks parse them, and an error names the line.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from stoker.errors import SourceEmpty, SourceInvalid, SourceTooLarge
from stoker.store.sources.source import Chunk, Place, Source, Task, Weighed
from stoker.store.sources.text import Block, is_compressed, line_blocks, open_text
from stoker.units import readable_bytes

MAX_HEADER_BYTES = 64 << 20  # what is kept of it has limits of its own
_HEADER_BLOCK = 64 << 10
_INFLATION = 16
"""Lines and their parts are objects of Python while they are parsed: short rows take many times their text."""


class RowFault(Exception):
    """A row that breaks a rule: its index among the rows given, and the reason."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(reason)
        self.index = index
        self.reason = reason


class LineSource(Source):
    """One file of rows, one a line, behind an optional header. A position is a byte of the decoded text."""

    path: Path
    comments: tuple[bytes, ...] = ()
    """What lines that are not data begin with."""

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = path.stat().st_size
        self.num_positions = None if is_compressed(path) else self.num_bytes

    @property
    @abstractmethod
    def _data_start(self) -> int:
        """Where the first line behind the header begins."""

    @abstractmethod
    def _table(self, rows: list[bytes]) -> pa.Table:
        """All columns of some rows; raises `RowFault`."""

    def schema(self) -> pa.Schema:
        return self._table([]).schema

    @cached_property
    def _first_line(self) -> tuple[int, bytes] | None:
        """The number and the text of the first line that is data; None where there is no row."""
        with closing(self._blocks(self._data_start, _HEADER_BLOCK)) as blocks:
            for block in blocks:
                if rows := self._rows(block):
                    return self._line_number(block.begin) + rows[0][0], rows[0][1]
        return None

    def read(self, schema: pa.Schema | None, *, start: Place, chunk_bytes: int) -> Generator[Task, None, None]:
        row = start.row
        with closing(self._blocks(start.position or self._data_start, max(chunk_bytes // _INFLATION, 1))) as blocks:
            for block in blocks:
                count = len(self._rows(block))
                if count:
                    yield Weighed(partial(self._chunk, block, schema, row), len(block.data))
                row += count

    def _chunk(self, block: Block, schema: pa.Schema | None, row: int) -> Chunk:
        rows = self._rows(block)
        try:
            table = self._table([line for _, line in rows])
        except RowFault as fault:
            self.refuse_line(self._line_number(block.begin) + rows[fault.index][0], fault.reason)
        table = table if schema is None else table.select(schema.names)
        return Chunk(table, Place(row, block.begin), Place(row + len(rows), block.end))

    def refuse_line(self, number: int, reason: str) -> NoReturn:
        """Say which line is wrong; lines count from 1."""
        raise SourceInvalid(f"line {number:,} of {self.path}: {reason}. Fix the line, or fetch the file again.")

    def _rows(self, block: Block) -> list[tuple[int, bytes]]:
        """The lines of a block that are data, each with its number within the block."""
        lines = enumerate(block.data.split(b"\n"))
        # Tabs at the ends stay: they may part fields.
        return [(i, line.strip(b" \r")) for i, line in lines if (text := line.strip()) and not text.startswith(self.comments)]

    def _blocks(self, start: int, block_bytes: int) -> Generator[Block, None, None]:
        with closing(open_text(self.path)) as text:
            yield from line_blocks(
                text, start=start, block_bytes=block_bytes, path=self.path, max_line_bytes=self.limits.line_bytes
            )

    def _line_number(self, position: int) -> int:
        """The number of the line that begins at `position`, counted again: errors may be slow."""
        count = 1
        with closing(self._blocks(0, 1 << 20)) as blocks:
            for block in blocks:
                count += block.data[: max(position - block.begin, 0)].count(b"\n")
                if block.end >= position:
                    break
        return count

    def _header_lines(self) -> Generator[tuple[int, str, int], None, None]:
        """The lines of the header that are not comments: number, text, and the position behind the line."""
        number = position = 0
        with closing(self._blocks(0, _HEADER_BLOCK)) as blocks:
            for block in blocks:
                lines = block.data.split(b"\n")
                for line in lines if lines[-1] else lines[:-1]:
                    number += 1
                    position = min(position + len(line) + 1, block.end)
                    if (text := line.strip()) and not text.startswith(self.comments):
                        yield number, text.decode("utf-8", "replace"), position
                if position > MAX_HEADER_BYTES:
                    raise SourceTooLarge(
                        f"{self.path} has a header of more than {readable_bytes(MAX_HEADER_BYTES)}. Is it what its name says?"
                    )
        if number == 0:
            raise SourceEmpty(f"{self.path} holds no text. Remove it, or leave it out of the pattern.")
        raise SourceInvalid(f"{self.path} has no line '@data' in its {number:,} lines. Is it cut off, or not what its name says?")

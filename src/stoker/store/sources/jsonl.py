"""JSON Lines (`.jsonl`, `.ndjson`): an object a line, or a list a line; compressed or not.

Objects of scalars are steps, objects with lists are whole series; a bare list is a series in the one column "sequence".
Keys that a row lacks are null. Keys that come up only behind the first block are an error: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path

import pyarrow as pa

from stoker.errors import SourceEmpty
from stoker.store.sources.json_rows import JsonRows, RowTexts, rows_of
from stoker.store.sources.source import Chunk, Place, Source, Task, Weighed
from stoker.store.sources.text import Block, is_compressed, line_blocks, open_text

FIRST_BYTES = 1 << 20
LIST_COLUMN = "sequence"
_INFLATION = 2
"""Text and the table made of it are in memory together."""


class JsonLinesSource(Source):
    """One file of JSON Lines. A position is a byte of the decoded text."""

    path: Path
    typed = False

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = path.stat().st_size
        self.num_positions = None if is_compressed(path) else self.num_bytes
        self._rows = JsonRows(self)

    def schema(self) -> pa.Schema:
        return self._first

    @cached_property
    def _first(self) -> pa.Schema:
        # Blocks end with a line break, so a last line without one would be left out if only one were looked at.
        lines: list[bytes] = []
        count = num_bytes = 0
        with closing(self._texts(Place(), FIRST_BYTES)) as blocks:
            for texts, _, _ in blocks:
                lines.append(texts.lines)
                count += texts.count
                num_bytes += len(texts.lines)
                if num_bytes >= FIRST_BYTES // 2:
                    break
        if not lines:
            raise SourceEmpty(f"{self.path} holds nothing but blank lines. Remove it, or leave it out of the pattern.")
        schema = self._rows.types(RowTexts(b"\n".join(lines), count, 0, self._column))
        if not schema.names:
            raise SourceEmpty(f"{self.path} holds only empty objects, so there is no column to read.")
        return schema

    @cached_property
    def _column(self) -> str | None:
        """The name of the one column if lines are lists and not objects; told by the first line."""
        with closing(self._blocks(0, FIRST_BYTES)) as blocks:
            first = next((line for block in blocks if (line := block.data.lstrip())), b"")
        return LIST_COLUMN if first.startswith(b"[") else None

    def read(self, schema: pa.Schema | None, *, start: Place, chunk_bytes: int) -> Generator[Task, None, None]:
        known = self._first.names
        most = rows_of(chunk_bytes, len(known))
        with closing(self._texts(start, max(chunk_bytes // _INFLATION, 1), most)) as blocks:
            for texts, begin, end in blocks:
                yield Weighed(partial(self._chunk, texts, schema, known, begin, end), len(texts.lines))

    def _texts(
        self, start: Place, block_bytes: int, max_rows: int | None = None
    ) -> Generator[tuple[RowTexts, Place, Place], None, None]:
        column = self._column
        row = start.row
        with closing(self._blocks(start.position, block_bytes)) as blocks:
            for block in blocks:
                for part in _parts(block, max_rows):
                    lines = [text for line in part.data.split(b"\n") if (text := line.strip())]
                    if lines:
                        texts = RowTexts(b"\n".join(lines), len(lines), row, column)
                        yield texts, Place(row, part.begin), Place(row + len(lines), part.end)
                        row += len(lines)

    def _blocks(self, start: int, block_bytes: int) -> Generator[Block, None, None]:
        with closing(open_text(self.path)) as text:
            yield from line_blocks(
                text, start=start, block_bytes=block_bytes, path=self.path, max_line_bytes=self.limits.line_bytes
            )

    def _chunk(self, texts: RowTexts, schema: pa.Schema | None, known: list[str], begin: Place, end: Place) -> Chunk:
        table = self._rows.suggest(texts, known) if schema is None else self._rows.parse(texts, schema, known)
        return Chunk(table, begin, end)

    def find_misfit(self, column: str, kind: pa.DataType) -> tuple[int, str] | None:
        """The first row (from 1) and text of `column` that is not of this type. Reads the file again: errors may be slow."""
        with closing(self._texts(Place(), FIRST_BYTES)) as blocks:
            found = (self._rows.find_misfit(texts, column, kind) for texts, _, _ in blocks)
            return next((one for one in found if one is not None), None)


def _parts(block: Block, max_lines: int | None) -> Iterator[Block]:
    """The block in parts of at most `max_lines` lines: short rows of a wide table take more memory than their text."""
    if max_lines is None or block.data.count(b"\n") < max_lines:
        yield block
        return
    begin = count = 0
    for end in _line_ends(block.data):
        count += 1
        if count == max_lines or end == len(block.data):
            yield Block(block.data[begin:end], block.begin + begin, block.begin + end)
            begin, count = end, 0


def _line_ends(data: bytes) -> Iterator[int]:
    end = 0
    while end < len(data):
        end = (data.find(b"\n", end) + 1) or len(data)
        yield end

"""CSV and its relatives: blocks of whole lines, each parsed by Arrow on a thread of its own.

Text declares no types. They are guessed from the first block, and a later block that does not fit raises `Unfit`;
the plan then reads everything once to settle them, so an integer column that meets a 2.5 becomes float64, and one
that meets "n/a" is an error that names the row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from stoker.errors import BadValue, SourceEmpty, SourceInvalid, SourceTooLarge
from stoker.store.sources import dialect as dialects
from stoker.store.sources.dialect import Dialect
from stoker.store.sources.source import Chunk, Place, Source, Task, Unfit
from stoker.store.sources.text import Block, line_blocks, open_text

SAMPLE_BYTES = 1 << 20
MAX_FIELDS = 65_536
EXACT_INTEGERS = 2.0**53
_INFLATION = 2  # bytes of Arrow for a byte of text, at most about


@dataclass(frozen=True)
class _Layout:
    dialect: Dialect
    names: list[str]
    data_start: int


class CsvSource(Source):
    """A delimited text table, plain or compressed. Its rows are steps."""

    typed = False

    def __init__(self, path: Path, name: str, dialect: Dialect) -> None:
        self.path = path
        self.name = name
        self.num_bytes = path.stat().st_size
        self._given = dialect

    @cached_property
    def _layout(self) -> _Layout:
        sample, complete = self._head()
        lines = sample.decode("utf-8", "replace").splitlines(keepends=True)
        skipped, lines = lines[: self._given.skip], lines[self._given.skip :]
        if not complete:
            lines = lines[:-1] or lines
        start = sum(len(line.encode()) for line in skipped)
        while lines and not lines[0].strip():
            start += len(lines.pop(0).encode())
        if not lines:
            raise SourceEmpty(f"{self.path} holds no lines. Remove it, or leave it out of the pattern.")
        settled = dialects.settle(self._given, [line.rstrip("\r\n") for line in lines[:50] if line.strip()])
        fields = dialects.fields_of(lines[0].rstrip("\r\n"), settled)
        if len(fields) > MAX_FIELDS:
            raise SourceTooLarge(f"{self.path} has {len(fields):,} columns; at most {MAX_FIELDS:,} can be read.")
        if not settled.header:
            return _Layout(settled, [f"c{i}" for i in range(len(fields))], start)
        return _Layout(settled, fields, start + len(lines[0].encode()))

    def _head(self) -> tuple[bytes, bool]:
        """The first part of the text, long enough to hold the header, and whether that is all of it."""
        assert_path = self.path
        file = open_text(assert_path, self._given.encoding)
        head = b""
        while True:
            data = file.read(SAMPLE_BYTES)
            head += data
            if not data:
                return head, True
            if head.count(b"\n") > self._given.skip + 1 and len(head) >= SAMPLE_BYTES:
                return head, False
            if len(head) > 64 * SAMPLE_BYTES:
                raise SourceTooLarge(f"{self.path} has a first line of more than {len(head) >> 20} MB. Is it a table in text?")

    def schema(self) -> pa.Schema:
        block = next(self._blocks(self._layout.data_start, SAMPLE_BYTES), None)
        if block is None:
            return pa.schema([(name, pa.null()) for name in self._layout.names])
        return self._parse(block, None, None, Place()).schema

    def read(self, schema: pa.Schema | None, *, start: Place, chunk_bytes: int) -> Iterator[Task]:
        first = start.position or self._layout.data_start
        rows_before: Future[int] = Future()
        rows_before.set_result(start.row)
        for block in self._blocks(first, max(chunk_bytes // _INFLATION, 1 << 16)):
            rows_behind: Future[int] = Future()
            yield partial(self._chunk, block, schema, rows_before, rows_behind)
            rows_before = rows_behind

    def _blocks(self, start: int, block_bytes: int) -> Iterator[Block]:
        text = open_text(self.path, self._given.encoding)
        return line_blocks(text, start=start, block_bytes=block_bytes, path=self.path, quote=self._given.quote.encode())

    def _chunk(self, block: Block, schema: pa.Schema | None, rows_before: Future[int], rows_behind: Future[int]) -> Chunk:
        """Parse a block. How many rows precede it is known once the block before it is parsed."""
        try:
            table = self._parse(block, schema, rows_before, None)
            begin = Place(rows_before.result(), block.begin)
        except BaseException as error:
            rows_behind.set_exception(error)
            raise
        end = Place(begin.row + table.num_rows, block.end)
        rows_behind.set_result(end.row)
        return Chunk(table, begin, end)

    def _parse(self, block: Block, schema: pa.Schema | None, rows_before: Future[int] | None, begin: Place | None) -> pa.Table:
        layout = self._layout
        types = None if schema is None else dict(zip(schema.names, schema.types, strict=True))
        try:
            table = self._arrow(block.data, types)
        except pa.ArrowInvalid as error:
            row = rows_before.result() if rows_before is not None else begin.row if begin is not None else 0
            self._explain(str(error), row)
        for name in table.column_names:
            if table.column(name).type == pa.float64():
                self._refuse_rounded_integers(block, table, name, rows_before)
        return table if schema is None else table.select(schema.names) if layout.names else table

    def _arrow(self, data: bytes, types: dict[str, pa.DataType] | None) -> pa.Table:
        dialect = self._layout.dialect
        null = [*pa_csv.ConvertOptions().null_values, *dialect.null]
        parsers = [dialect.time_format] if dialect.time_format else [pa_csv.ISO8601]
        return pa_csv.read_csv(
            pa.BufferReader(data),
            read_options=pa_csv.ReadOptions(column_names=self._layout.names, use_threads=False, block_size=len(data) + 1),
            parse_options=pa_csv.ParseOptions(
                delimiter=dialect.delimiter or ",",
                quote_char=dialect.quote or False,
                escape_char=dialect.escape or False,
                newlines_in_values=bool(dialect.quote) and dialect.quote.encode() in data,
            ),
            convert_options=pa_csv.ConvertOptions(
                column_types=types,
                include_columns=None if types is None else list(types),
                null_values=null,
                timestamp_parsers=parsers,
                decimal_point=dialect.decimal,
                check_utf8=True,
            ),
        )

    def _explain(self, message: str, rows_before: int) -> NoReturn:
        """Turn Arrow's message into ours: a value that does not fit its column, or a line that does not fit the table."""
        if found := re.search(r"In CSV column #(\d+)", message):
            raise Unfit(self, self._layout.names[int(found[1])])
        if found := re.search(r"(?:Row #(\d+): )?Expected (\d+) columns, got (\d+): ?(.*)", message, re.DOTALL):
            row = f"row {rows_before + int(found[1]):,} of " if found[1] else ""
            shown = found[4].strip().splitlines()[0][:60] if found[4].strip() else ""
            raise SourceInvalid(
                f"{row}{self.path} has {found[3]} fields, but {found[2]} are expected: {shown!r}. Fix the line, or pass --delimiter or --quote."
            )
        raise SourceInvalid(f"{self.path} cannot be read as a table in text: {message.splitlines()[0]}")

    def _refuse_rounded_integers(self, block: Block, table: pa.Table, name: str, rows_before: Future[int] | None) -> None:
        """Arrow reads integers beyond int64 as float64, which drops digits: refuse those that do not survive."""
        values = table.column(name)
        largest = pc.max(pc.abs(values)).as_py()
        if largest is None or not largest >= EXACT_INTEGERS:
            return
        texts = self._arrow(block.data, {name: pa.string()}).column(name)
        suspects = np.flatnonzero(pc.fill_null(pc.greater_equal(pc.abs(values), EXACT_INTEGERS), False).to_numpy(zero_copy_only=False))
        for i in suspects.tolist():
            text = texts[i].as_py().strip()
            if re.fullmatch(r"[+-]?\d+", text) and int(text) != int(values[i].as_py()):
                row = (rows_before.result() if rows_before is not None else 0) + i + 1
                raise BadValue(
                    f"column {name!r} of {self.path} holds {text} in row {row:,}, an integer that float64 cannot hold exactly. "
                    f"Keep it as text with --dtype {name}=text, or leave the column out with --columns."
                )

    def find_misfit(self, column: str, kind: pa.DataType) -> tuple[int, str] | None:
        """The first row (from 1) and text of `column` that is not of this type. Reads the file again: errors may be slow."""
        for task in self.read(pa.schema([(column, pa.string())]), start=Place(), chunk_bytes=8 << 20):
            chunk = task()
            texts = chunk.table.column(column)
            for i, text in enumerate(texts.to_pylist()):
                if text is not None and not self._fits(text, kind):
                    return chunk.begin.row + i + 1, text
        return None

    def _fits(self, text: str, kind: pa.DataType) -> bool:
        one_field = CsvSource.__new__(CsvSource)
        one_field.path, one_field.name, one_field._given = self.path, self.name, self._given
        one_field.__dict__["_layout"] = replace(self._layout, names=["value"])
        quoted = '"' + text.replace('"', '""') + '"' if self._given.quote == '"' else text
        try:
            one_field._arrow(quoted.encode() + b"\n", {"value": kind})
        except pa.ArrowInvalid:
            return False
        return True

"""JSON documents (`.json`): an array of objects, of lists or of numbers, or an object of equally long lists.

    [{"a": 1}, {"a": 2}]      rows of columns, like JSON Lines
    [[1, 2, 3], [4, 5]]       a series a row, in the one column "sequence"
    [1, 2, 3]                 one series, in the one column "value"
    {"a": [1, 2], "b": [3, 4]}  the columns of a table, one behind the other

The document is read as a stream. Of an object, each column is read by a cursor of its own, so it is gone through once to
find where they begin. A position is a number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import NoReturn

import pyarrow as pa

from stoker.errors import SourceEmpty, SourceInvalid, SourceTooLarge
from stoker.store.sources.json_rows import JsonRows, RowTexts, rows_of
from stoker.store.sources.json_text import PIECE_BYTES, Elements, JsonText
from stoker.store.sources.jsonl import FIRST_BYTES, LIST_COLUMN
from stoker.store.sources.source import Chunk, Place, Source, Task, Weighed
from stoker.store.sources.text import open_text

NUMBER_COLUMN = "value"
MAX_COLUMNS = 4096
_INFLATION = 2
_FIRST_ROWS = 100_000  # from which types are guessed: elements of two bytes are many to a megabyte
_NOTHING = Elements(b"", 0)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the document is: the arrays to read side by side, and where they begin."""

    starts: dict[str | None, int]
    """The byte before the opening bracket of each column; the key is None for an array of objects."""
    whole: bool
    """Whether the one array is the whole document."""


class JsonSource(Source):
    """One JSON document."""

    path: Path
    typed = False

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = path.stat().st_size
        self._rows = JsonRows(self)

    @cached_property
    def _layout(self) -> _Layout:
        with JsonText(open_text(self.path), self.label, limits=self.limits) as text:
            first = text.peek()
            if first == b"[":
                return _Layout({self._kind_of_array(text): 0}, whole=True)
            if first == b"{":
                return _Layout(self._find_columns(text), whole=False)
        if not first:
            raise SourceEmpty(f"{self.path} holds nothing but white space. Remove it, or leave it out of the pattern.")
        shown = first.decode("utf-8", "replace")
        raise SourceInvalid(f"{self.path} begins with {shown!r}; expected an array or an object. Is it JSON?")

    def _kind_of_array(self, text: JsonText) -> str | None:
        text.enter()
        first = text.peek()
        if first == b"]":
            raise SourceEmpty(f"{self.path} holds an empty array. Remove it, or leave it out of the pattern.")
        return None if first == b"{" else LIST_COLUMN if first == b"[" else NUMBER_COLUMN

    def _find_columns(self, text: JsonText) -> dict[str | None, int]:
        text.expect(b"{")
        starts: dict[str | None, int] = {}
        while text.peek() != b"}":
            name = text.key()
            found = text.peek()
            if name in starts:
                raise SourceInvalid(f"{self.path} has the key {name!r} twice. Rename one of them.")
            if found != b"[":
                raise SourceInvalid(
                    f"{self.path} has no list under the key {name!r}. Expected an array of objects, or an object of equally "
                    "long lists (in pandas: orient='records' or 'list'); if each line is an object of its own, name it .jsonl."
                )
            starts[name] = text.position
            if len(starts) > min(MAX_COLUMNS, self.limits.columns):
                raise SourceTooLarge(
                    f"{self.path} is an object of more than {len(starts) - 1:,} keys; expected a table of columns. "
                    "If it is one, give more --memory, or make it an array of objects."
                )
            text.enter()
            if text.peek() == b"{":
                raise SourceInvalid(f"{self.path} has a list of objects under the key {name!r}. Make that list a file of its own.")
            text.skip()
            if text.peek() != b"}":
                text.expect(b",")
                if text.peek() == b"}":
                    text.expect(b'"')
        text.expect(b"}")
        text.finish()
        if not starts:
            raise SourceEmpty(f"{self.path} holds an empty object. Remove it, or leave it out of the pattern.")
        return starts

    def schema(self) -> pa.Schema:
        return self._first

    @cached_property
    def _first(self) -> pa.Schema:
        fields: list[pa.Field] = []
        for column in self._layout.starts:
            with self._open(column) as text:
                elements = text.take(max_bytes=FIRST_BYTES, max_count=_FIRST_ROWS)
            if elements is None:
                fields.append(pa.field(column, pa.null()))
            else:
                fields.extend(self._rows.types(_texts(elements, 0, column)))
        if not fields:
            raise SourceEmpty(f"{self.path} holds only empty objects, so there is no column to read.")
        return pa.schema(fields)

    def _open(self, column: str | None, piece_bytes: int = PIECE_BYTES) -> JsonText:
        start = self._layout.starts[column]
        return JsonText(open_text(self.path), self.label, start=start, entered=True, limits=self.limits, piece_bytes=piece_bytes)

    def read(self, schema: pa.Schema | None, *, start: Place, chunk_bytes: int) -> Iterator[Task]:
        text_bytes = max(chunk_bytes // _INFLATION, 1)
        if self._layout.whole:
            most = rows_of(chunk_bytes, len(self._first))
            return self._read_array(next(iter(self._layout.starts)), schema, start.row, text_bytes, most)
        return self._read_columns(schema, start.row, text_bytes)

    def _read_array(self, column: str | None, schema: pa.Schema | None, row: int, text_bytes: int, max_rows: int) -> Iterator[Task]:
        known = self._first.names
        with self._open(column) as text:
            self._skip(text, row)
            while (elements := text.take(max_bytes=text_bytes, max_count=max_rows)) is not None:
                texts = _texts(elements, row, column)
                row += elements.count
                yield Weighed(partial(self._array_chunk, texts, schema, known), len(texts.lines))
            text.finish()

    def _array_chunk(self, texts: RowTexts, schema: pa.Schema | None, known: list[str]) -> Chunk:
        table = self._rows.suggest(texts, known) if schema is None else self._rows.parse(texts, schema, known)
        return _chunk(table, texts.rows_before)

    def _read_columns(self, schema: pa.Schema | None, row: int, text_bytes: int) -> Iterator[Task]:
        """Cursors side by side: the first column decides how many rows a chunk has."""
        names = self._first.names if schema is None else schema.names
        with ExitStack() as stack:
            # All cursors are open at a time, so each holds its share of what one may.
            piece = max(1 << 10, PIECE_BYTES // len(self._layout.starts))
            cursors = {str(name): stack.enter_context(self._open(name, piece)) for name in self._layout.starts}
            for text in cursors.values():
                self._skip(text, row)
            share = max(text_bytes // len(cursors), 1)
            while (parts := self._side_by_side(cursors, share)) is not None:
                wanted = [_texts(part, row, name) for name, part in parts.items() if name in names]
                yield partial(self._column_chunk, wanted, schema, row)
                row += next(iter(parts.values())).count

    def _side_by_side(self, cursors: dict[str, JsonText], share: int) -> dict[str, Elements] | None:
        """Equally many elements of each column; None at the end of all."""
        parts: dict[str, Elements] = {}
        count: int | None = None
        for name, text in cursors.items():
            part = text.take(max_bytes=share) or _NOTHING if count is None else _take_exactly(text, count)
            count = part.count if count is None else count
            if part.count != count:
                self._refuse_lengths()
            parts[name] = part
        return parts if count else None

    def _column_chunk(self, texts: list[RowTexts], schema: pa.Schema | None, row: int) -> Chunk:
        columns: dict[str, pa.ChunkedArray] = {}
        for one in texts:
            name = str(one.column)
            table = (
                self._rows.suggest(one, [name])
                if schema is None
                else self._rows.parse(one, pa.schema([schema.field(name)]), [name])
            )
            columns[name] = table.column(0)
        names = self._first.names if schema is None else schema.names
        return _chunk(pa.table({name: columns[name] for name in names}), row)

    def _refuse_lengths(self) -> NoReturn:
        lengths = {}
        for name in self._layout.starts:
            with self._open(name) as text:
                lengths[name] = text.skip()
        first, length = next(iter(lengths.items()))
        other = next(name for name, found in lengths.items() if found != length)
        raise SourceInvalid(
            f"{self.path} has {lengths[other]:,} values under the key {other!r}, but {length:,} under {first!r}. "
            "Expected equally long lists."
        )

    def _skip(self, text: JsonText, num_rows: int) -> None:
        if (found := text.skip(num_rows)) < num_rows:
            raise SourceInvalid(f"{self.path} has {found:,} rows, but {num_rows:,} were read of it before. It was changed.")

    def find_misfit(self, column: str, kind: pa.DataType) -> tuple[int, str] | None:
        """The first row (from 1) and text of `column` that is not of this type. Reads the file again: errors may be slow."""
        source = column if column in self._layout.starts else None
        row = 0
        with self._open(source) as text:
            while (elements := text.take(max_bytes=FIRST_BYTES)) is not None:
                found = self._rows.find_misfit(_texts(elements, row, source), column, kind)
                if found is not None:
                    return found
                row += elements.count
        return None


def _texts(elements: Elements, row: int, column: str | None) -> RowTexts:
    return RowTexts(elements.lines, elements.count, row, column)


def _chunk(table: pa.Table, row: int) -> Chunk:
    end = row + table.num_rows
    return Chunk(table, Place(row, row), Place(end, end))


def _take_exactly(text: JsonText, count: int) -> Elements:
    """`count` elements, or all that are left; with a count of 0, what should not be there."""
    parts: list[Elements] = []
    missing = max(count, 1)
    while missing and (part := text.take(max_bytes=PIECE_BYTES, max_count=missing)) is not None:
        parts.append(part)
        missing -= part.count
    return Elements(b"\n".join(part.lines for part in parts), sum(part.count for part in parts))

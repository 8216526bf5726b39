"""JSON: `JsonRows` parses rows with Arrow, `JsonLinesSource` reads `.jsonl`.

Arrow's parser is fast, but a row that is `null` or deeply nested ends the process, lists that begin with null get a wrong inferred
type, and integers beyond int64 are rounded. So it only gets text and types that it is known to read correctly; all else, and all
errors, are parsed row by row (`json_text`). The result is exactly what the file says, or an error that names the row.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from stoker.errors import BadValueError, SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats import json_text
from stoker.store.formats.base import Chunk, DataSource, InferredTypeError, RowLocation, SizedTask, Task
from stoker.store.formats.json_text import RowTexts, Types, keys_of
from stoker.store.formats.text import LineBlock, TextSource

MAX_DEPTH = 64
EXACT_INTEGERS = 2**53
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_INTEGER = re.compile(rb"(?<![\d.eE])(?<![eE][+-])-?\d{16,}(?![\d.eE])")
_MAX_DIGITS = 300  # more would overflow float64
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]|$)")
_MOMENTS = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ms", "us", "ns")]

_Result = TypeVar("_Result")


class JsonRows:
    """The parser of one source. Also used for the sequences of a `meta.json`."""

    def __init__(self, source: DataSource) -> None:
        self._source = source

    def types(self, texts: RowTexts) -> pa.Schema:
        """Infer the types of these rows. A column of mixed types gets the first: it is an error only if it is read."""
        num_keys = self._count_keys(texts)
        types: dict[str, pa.DataType] = {}
        # A parser makes a column as long as all rows for every key, so rows with many different keys are parsed in parts.
        for part in _in_parts(texts, max(1, self._source.limits.line_bytes // 2 // max(num_keys, 1))):
            table = _parse(part, None, others="infer")
            if table is None:
                part_types = self._row_by_row(part, json_text.infer_types)
            else:
                part_types = {field.name: _parsed_type(field.type) for field in table.schema}
            types = json_text.merge_types(types, part_types)
        moments = {name: kind for name, kind in types.items() if pa.types.is_string(_leaf(kind))}
        if moments:
            with contextlib.suppress(BadValueError):  # a column of mixed lists stays as it is
                types |= {name: _moment_type(array) for name, array in self._columns(texts, moments, None).items()}
        # Lists of series have 64-bit offsets.
        large = {name: pa.large_list(kind.value_type) if pa.types.is_list(kind) else kind for name, kind in types.items()}
        return pa.schema(list(large.items()))

    def _count_keys(self, texts: RowTexts) -> int:
        """The number of different keys, at any depth; too many are an error."""
        most = self._source.limits.columns
        keys: set[bytes] = set()
        for key in keys_of(texts.lines):
            keys.add(key)
            if len(keys) > most:
                raise SourceTooLargeError(
                    f"{self._source.label} has more than {most:,} different keys in its rows {texts.rows_before + 1:,} to "
                    f"{texts.rows_before + texts.count:,}, where columns are expected. Is one of them a value? "
                    "If not, pass a larger Resources(memory=).",
                    parameter="memory",
                )
        return len(keys)

    def parse(self, texts: RowTexts, schema: pa.Schema | None, known: Collection[str]) -> pa.Table:
        """The columns of `schema`, or the known ones with inferred types. A key that is neither in it nor known is an error."""
        if schema is None:
            inferred = self.types(texts)
            schema = pa.schema([(name, inferred.field(name).type if name in inferred.names else pa.null()) for name in known])
        types = dict(zip(schema.names, schema.types, strict=True))
        columns = self._columns(texts, types, {*known, *types})
        arrays = []
        for name, kind in types.items():
            try:
                arrays.append(columns[name].cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise InferredTypeError(self._source, name) from error
        return pa.table(arrays, schema=pa.schema([pa.field(name, kind) for name, kind in types.items()]))

    def _columns(self, texts: RowTexts, types: Types, known: Collection[str] | None) -> dict[str, pa.Array]:
        complete = known is not None and set(known) <= set(types)
        build = partial(json_text.build_columns, types=types, known=known)
        table = _parse(texts, types, others="error" if complete else "ignore")
        if table is None:
            return self._row_by_row(texts, build)
        if known is not None and not complete and texts.column is None:
            unknown = set(keys_of(texts.lines, top_level=True)) - {name.encode() for name in known}
            if any(json.loads(b'"%b"' % key) not in known for key in unknown):  # a key may be written in several ways
                self._row_by_row(texts, build)
        columns = {name: table.column(name).combine_chunks() for name in types}
        if any(_may_be_rounded(array, texts.lines) for array in columns.values()):
            return self._row_by_row(texts, build)
        return columns

    def _row_by_row(self, texts: RowTexts, read: Callable[[Iterator[dict[str, Any]]], _Result]) -> _Result:
        """The slow, exact parser, which also finds the row with an error."""
        row, line = texts.rows_before, b""

        def rows() -> Iterator[dict[str, Any]]:
            nonlocal row, line
            for line in texts.lines.split(b"\n"):
                row += 1
                yield json_text.load(line, texts.column)

        try:
            return read(rows())
        except json_text.JsonTypeError as misfit:
            if misfit.wider:
                raise InferredTypeError(self._source, misfit.column) from None
            raise BadValueError(
                f"column {misfit.column!r} of {self._source.label} holds {misfit.found} in row {row:,}, but is {misfit.expected}. "
                f"Fix the file, pass dtype={{{misfit.column!r}: 'text'}}, or leave the column out with columns=[...].",
                parameter="dtype",
                path=self._source.path,
                row=row,
                column=misfit.column,
            ) from None
        except pa.ArrowException:
            raise
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
            text = line[:64].decode("utf-8", "replace")
            shown = text if len(line) <= 64 else text[:60] + "…"
            raise SourceInvalidError(
                f"row {row:,} of {self._source.label} is not valid: {reason}. It begins with {shown!r}. "
                "Expected one object, or one list of numbers, per line."
            ) from error

    def find_misfits(self, texts: RowTexts, types: Mapping[str, pa.DataType]) -> list[tuple[str, int, str]]:
        """The values that are not of the type of their column, as text: each once, with its column and its first row (from 1)."""
        misfits: dict[tuple[str, str], int] = {}
        for i, line in enumerate(texts.lines.split(b"\n")):
            values = json_text.load(line, texts.column)
            for column, kind in types.items():
                value = values.get(column)
                try:
                    json_text.check(column, value, kind)
                    json_text.arrow_array([value], kind).cast(kind)
                except (json_text.JsonTypeError, pa.ArrowInvalid):
                    misfits.setdefault((column, value if isinstance(value, str) else json.dumps(value)), texts.rows_before + i + 1)
        return [(column, row, text) for (column, text), row in misfits.items()]


def _parsed_type(kind: pa.DataType, moment: pa.DataType | None = None) -> pa.DataType:
    """A type that Arrow's parser inferred, with strings left as strings; or, with `moment`, strings as that type."""
    if pa.types.is_list(kind):
        return pa.list_(_parsed_type(kind.value_type, moment))
    return pa.string() if pa.types.is_temporal(kind) else moment or kind


def rows_of(chunk_bytes: int, num_columns: int) -> int:
    """The most rows of a chunk of this size: a key that a row lacks takes as much memory as one that it has."""
    return max(1, chunk_bytes // (8 * max(num_columns, 1)))


def _in_parts(texts: RowTexts, max_rows: int) -> Iterator[RowTexts]:
    """The same rows, at most `max_rows` at a time."""
    if texts.count <= max_rows:
        yield texts
        return
    lines = texts.lines.split(b"\n")
    for start in range(0, len(lines), max_rows):
        part = lines[start : start + max_rows]
        yield RowTexts(b"\n".join(part), len(part), texts.rows_before + start, texts.column)


def _parse(texts: RowTexts, types: Types | None, *, others: Literal["infer", "ignore", "error"]) -> pa.Table | None:
    """The rows as parsed by Arrow, or None where it cannot be trusted or finds an error.

    `others` says what to do with keys without a type. "infer" makes a column of each, so count them before.
    """
    lines = texts.lines
    if texts.column is None and lines.count(b"\n{") + lines.startswith(b"{") != texts.count:
        return None
    # An upper bound of the nesting depth: brackets in strings count.
    brackets = np.frombuffer(lines.translate(None, _NOT_BRACKETS), dtype=np.uint8)
    steps = np.where((brackets == ord("[")) | (brackets == ord("{")), 1, -1)
    if np.cumsum(steps).max(initial=0) > MAX_DEPTH:
        return None
    explicit = None if types is None else [(name, json_text.storage_type(kind)) for name, kind in types.items()]
    if texts.column is not None:
        lines = b"{%b:[%b]}" % (json.dumps(texts.column).encode(), lines.replace(b"\n", b","))
        explicit = None if explicit is None else [(name, pa.list_(kind)) for name, kind in explicit]
    try:
        if not lines.isascii():
            lines.decode()  # raises where it is not UTF-8
        table = pa_json.read_json(
            pa.BufferReader(lines),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=None if explicit is None else pa.schema(explicit), unexpected_field_behavior=others
            ),
        )
        if texts.column is not None:
            if table.num_rows != 1 or table.column_names != [texts.column]:
                return None
            table = pa.table({texts.column: table.column(0).combine_chunks().flatten()})
        if types is not None:
            table.select(list(types)).validate(full=True)
    except (pa.ArrowException, IndexError, KeyError, UnicodeDecodeError):
        return None
    return table if table.num_rows == texts.count else None


def _may_be_rounded(array: pa.Array, lines: bytes) -> bool:
    """Whether integers may have lost digits, or numbers may have become infinite, as floats."""
    values = _leaves(array)
    if pa.types.is_float32(values.type):
        return bool(pc.any(pc.is_inf(values)).as_py())
    if not pa.types.is_float64(values.type):
        return False
    largest = pc.max(pc.abs(values)).as_py()
    if largest is None or largest < EXACT_INTEGERS:
        return False
    return any(len(digits) > _MAX_DIGITS or float(digits) != int(digits) for digits in _LONG_INTEGER.findall(lines))


def _leaves(array: pa.Array) -> pa.Array:
    while pa.types.is_list(array.type):
        array = array.flatten()
    return array


def _leaf(kind: pa.DataType) -> pa.DataType:
    return _leaf(kind.value_type) if pa.types.is_list(kind) else kind


def _moment_type(array: pa.Array) -> pa.DataType:
    """The type of strings: timestamps if all are ISO 8601, without a zone, or in UTC if each has one."""
    given = _leaves(array).drop_null()
    if len(given) and _DATE.match(given[0].as_py()):
        for moment in _MOMENTS:
            try:
                given.cast(moment)
            except pa.ArrowInvalid:
                continue
            return _parsed_type(array.type, moment)
    return array.type


# JSON Lines (`.jsonl`, `.ndjson`): one object or list per line; compressed or not.
#
# Objects of scalars are steps, objects with lists are whole series; a bare list is a series in the one column "sequence". Keys that a
# row lacks are null. Keys that first appear after the first block are an error: nothing is dropped silently.

FIRST_BYTES = 1 << 20
LIST_COLUMN = "sequence"
_INFLATION = 2


class JsonLinesSource(TextSource):
    """One file of JSON Lines."""

    typed = False

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(path, name)
        self._rows = JsonRows(self)

    def schema(self) -> pa.Schema:
        return self._first

    @cached_property
    def _first(self) -> pa.Schema:
        # Blocks end with a line break, so a last line without one is in a block of its own.
        lines: list[bytes] = []
        count = num_bytes = 0
        with closing(self._texts(RowLocation(), FIRST_BYTES)) as blocks:
            for texts, _, _ in blocks:
                lines.append(texts.lines)
                count += texts.count
                num_bytes += len(texts.lines)
                if num_bytes >= FIRST_BYTES // 2:
                    break
        if not lines:
            raise SourceEmptyError(f"{self.path} holds nothing but blank lines. Remove it, or leave it out of the pattern.")
        schema = self._rows.types(RowTexts(b"\n".join(lines), count, 0, self._column))
        if not schema.names:
            raise SourceEmptyError(f"{self.path} holds only empty objects, so there is no column to read.")
        return schema

    @cached_property
    def _column(self) -> str | None:
        """The name of the one column if lines are lists and not objects, as the first line shows."""
        with closing(self._blocks(0, FIRST_BYTES)) as blocks:
            first = next((line for block in blocks if (line := block.data.lstrip())), b"")
        return LIST_COLUMN if first.startswith(b"[") else None

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Generator[Task, None, None]:
        known = self._first.names
        most = rows_of(chunk_bytes, len(known))
        with closing(self._texts(start, max(chunk_bytes // _INFLATION, 1), most)) as blocks:
            for texts, begin, end in blocks:
                yield SizedTask(partial(self._chunk, texts, schema, known, begin, end), len(texts.lines))

    def _texts(
        self, start: RowLocation, block_bytes: int, max_rows: int | None = None
    ) -> Generator[tuple[RowTexts, RowLocation, RowLocation], None, None]:
        column = self._column
        row = start.row
        with closing(self._blocks(start.position, block_bytes)) as blocks:
            for block in blocks:
                for part in _parts(block, max_rows):
                    lines = [text for line in part.data.split(b"\n") if (text := line.strip())]
                    if lines:
                        texts = RowTexts(b"\n".join(lines), len(lines), row, column)
                        yield texts, RowLocation(row, part.begin), RowLocation(row + len(lines), part.end)
                        row += len(lines)

    def _chunk(self, texts: RowTexts, schema: pa.Schema | None, known: list[str], begin: RowLocation, end: RowLocation) -> Chunk:
        return Chunk(self._rows.parse(texts, schema, known), begin, end)

    def find_misfits(self, types: Mapping[str, pa.DataType]) -> Iterator[tuple[int, list[tuple[str, int, str]]]]:
        with closing(self._texts(RowLocation(), FIRST_BYTES)) as blocks:
            for texts, _, _ in blocks:
                yield len(texts.lines), self._rows.find_misfits(texts, types)


def _parts(block: LineBlock, max_lines: int | None) -> Iterator[LineBlock]:
    """The block in parts of at most `max_lines` lines: short rows of a wide table take more memory than their text."""
    if max_lines is None or block.data.count(b"\n") < max_lines:
        yield block
        return
    begin = end = count = 0
    while end < len(block.data):
        end = (block.data.find(b"\n", end) + 1) or len(block.data)
        count += 1
        if count == max_lines or end == len(block.data):
            yield LineBlock(block.data[begin:end], block.begin + begin, block.begin + end)
            begin, count = end, 0

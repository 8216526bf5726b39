"""Texts of rows become Arrow columns: for `.jsonl`, `.json` and `meta.json` alike.

Arrow's parser does the work. It is fast, but a row that is `null` or nested deeply ends the process, lists that begin with
null come out wrong where it guesses their type, and integers beyond int64 are rounded. So it is only given text and types
that it is known to read rightly; all else, and all errors, go row by row through `json_values`. The law: what comes out is
what the file says, or an error that names the row.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pa_json

from stoker.errors import BadValue, SourceInvalid, SourceTooLarge
from stoker.store.sources import json_values
from stoker.store.sources.json_text import keys_of
from stoker.store.sources.source import Source, Unfit

MAX_DEPTH = 64
EXACT_INTEGERS = 2**53
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_INTEGER = re.compile(rb"(?<![\d.eE])(?<![eE][+-])-?\d{16,}(?![\d.eE])")
_MAX_DIGITS = 300  # more would overflow float64
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]|$)")
_MOMENTS = [pa.timestamp(unit, zone) for zone in (None, "UTC") for unit in ("s", "ms", "us", "ns")]

Types = Mapping[str, pa.DataType]


@dataclass(frozen=True, slots=True)
class RowTexts:
    """Rows as text, one a line, and the number of rows before them."""

    lines: bytes
    count: int
    rows_before: int
    column: str | None = None
    """Set where rows are not objects but plain values: the name of the one column they are."""


class JsonRows:
    """The parser of one source, which it names in errors."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def types(self, texts: RowTexts) -> pa.Schema:
        """The types that these rows suggest. A column of mixed types gets the first: it is an error only if it is asked for."""
        num_keys = self._count_keys(texts)
        types: dict[str, pa.DataType] = {}
        # A parser makes a column of every key, as long as all rows: rows that each have keys of their own are read some at a time.
        for part in _in_parts(texts, max(1, self._source.limits.line_bytes // 2 // max(num_keys, 1))):
            types = json_values.merge_types(types, self._types_of(part))
        moments = {name: kind for name, kind in types.items() if pa.types.is_string(_leaf(kind))}
        if moments:
            with contextlib.suppress(BadValue):  # a column of mixed lists: it stays what it is
                types |= {name: _moment_type(array) for name, array in self._columns(texts, moments, None).items()}
        return pa.schema([(name, _large(kind)) for name, kind in types.items()])

    def _types_of(self, texts: RowTexts) -> dict[str, pa.DataType]:
        table = _parse(texts, None, others="infer")
        if table is None:
            return self._row_by_row(texts, json_values.Guess())
        return {field.name: _parsed_type(field.type) for field in table.schema}

    def _count_keys(self, texts: RowTexts) -> int:
        """How many different keys there are, at any depth; too many are an error."""
        most = self._source.limits.columns
        found: set[bytes] = set()
        for key in keys_of(texts.lines):
            found.add(key)
            if len(found) > most:
                raise SourceTooLarge(
                    f"{self._source.label} has more than {most:,} different keys in its rows {texts.rows_before + 1:,} to "
                    f"{texts.rows_before + texts.count:,}, where columns are expected. Is one of them a value? "
                    "If not, give more --memory."
                )
        return len(found)

    def suggest(self, texts: RowTexts, known: Collection[str]) -> pa.Table:
        """The known columns with the types that these rows suggest; other keys are an error."""
        found = self.types(texts)
        types = {name: found.field(name).type if name in found.names else pa.null() for name in known}
        return self.parse(texts, pa.schema(list(types.items())), known)

    def parse(self, texts: RowTexts, schema: pa.Schema, known: Collection[str]) -> pa.Table:
        """The columns asked for, in their types. A key that is neither known nor asked for is an error."""
        types = dict(zip(schema.names, schema.types, strict=True))
        columns = self._columns(texts, types, {*known, *types})
        arrays = []
        for name, kind in types.items():
            try:
                arrays.append(columns[name].cast(kind))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise Unfit(self._source, name) from error
        return pa.table(arrays, schema=pa.schema([pa.field(name, kind) for name, kind in types.items()]))

    def _columns(self, texts: RowTexts, types: Types, known: Collection[str] | None) -> dict[str, pa.Array]:
        complete = known is not None and set(known) <= set(types)
        table = _parse(texts, types, others="error" if complete else "ignore")
        if table is None:
            return self._row_by_row(texts, json_values.Build(types, known))
        if known is not None and not complete and texts.column is None and _has_others(texts, known):
            self._row_by_row(texts, json_values.Build(types, known))
        columns = {name: table.column(name).combine_chunks() for name in types}
        if any(_may_be_rounded(array, texts.lines) for array in columns.values()):
            return self._row_by_row(texts, json_values.Build(types, known))
        return columns

    def _row_by_row(self, texts: RowTexts, reader: json_values.RowReader) -> dict[str, Any]:
        """The slow, exact way, which also finds the row to blame."""
        for i, line in enumerate(texts.lines.split(b"\n")):
            row = texts.rows_before + i + 1
            try:
                reader.add(json_values.load(line, texts.column))
            except json_values.Misfit as misfit:
                self._refuse(misfit, row)
            except (ValueError, RecursionError) as error:
                reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
                raise SourceInvalid(
                    f"row {row:,} of {self._source.label} is not valid: {reason}. It begins with {_shown(line)}."
                ) from error
        return reader.finish()

    def _refuse(self, misfit: json_values.Misfit, row: int) -> NoReturn:
        if misfit.wider:
            raise Unfit(self._source, misfit.column)
        raise BadValue(
            f"column {misfit.column!r} of {self._source.label} holds {misfit.found} in row {row:,}, but is {misfit.expected}. "
            f"Fix the file, pass --dtype {misfit.column}=text, or leave the column out with --columns."
        )

    def find_misfit(self, texts: RowTexts, column: str, kind: pa.DataType) -> tuple[int, str] | None:
        """The first row (from 1) whose value in `column` is not of this type, and the value as text."""
        for i, line in enumerate(texts.lines.split(b"\n")):
            row = json_values.load(line, texts.column)
            value = row.get(column) if isinstance(row, dict) else None
            try:
                json_values.check(column, value, kind)
                json_values.arrow_array([value], kind).cast(kind)
            except (json_values.Misfit, pa.ArrowInvalid):
                return texts.rows_before + i + 1, value if isinstance(value, str) else json.dumps(value)
        return None


def _parsed_type(kind: pa.DataType) -> pa.DataType:
    """A type that Arrow's parser guessed, with texts left as texts."""
    if pa.types.is_list(kind):
        return pa.list_(_parsed_type(kind.value_type))
    return pa.string() if pa.types.is_temporal(kind) else kind


def rows_of(chunk_bytes: int, num_columns: int) -> int:
    """How many rows make a chunk of this size, whatever they are: a key that a row lacks takes as much as one that it has."""
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


def _has_others(texts: RowTexts, known: Collection[str]) -> bool:
    """Whether rows have keys that are not known, where not all of the known ones are parsed."""
    found = set(keys_of(texts.lines, top_level=True)) - {name.encode() for name in known}
    return any(json.loads(b'"%b"' % key) not in known for key in found)  # a key may be written in several ways


def _parse(texts: RowTexts, types: Types | None, *, others: Literal["infer", "ignore", "error"]) -> pa.Table | None:
    """Arrow's reading of the rows, or None where it cannot be trusted or finds a fault.

    `others` says what becomes of keys without a type. To infer theirs makes a column of each, so these must have been counted.
    """
    lines = texts.lines
    if texts.column is None and lines.count(b"\n{") + lines.startswith(b"{") != texts.count:
        return None
    if _depth(lines) > MAX_DEPTH or not _is_utf8(lines):
        return None
    explicit = None if types is None else [(name, json_values.storage_type(kind)) for name, kind in types.items()]
    if texts.column is not None:
        lines = b"{%b:[%b]}" % (json.dumps(texts.column).encode(), lines.replace(b"\n", b","))
        explicit = None if explicit is None else [(name, pa.list_(kind)) for name, kind in explicit]
    try:
        table = pa_json.read_json(
            pa.BufferReader(lines),
            read_options=pa_json.ReadOptions(use_threads=False, block_size=len(lines) + 1),
            parse_options=pa_json.ParseOptions(
                explicit_schema=None if explicit is None else pa.schema(explicit),
                unexpected_field_behavior=others,
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


def _depth(lines: bytes) -> int:
    """How deeply the text is nested, or more (brackets in strings count)."""
    brackets = np.frombuffer(lines.translate(None, _NOT_BRACKETS), dtype=np.uint8)
    if not brackets.size:
        return 0
    opens = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opens, 1, -1)).max())


def _is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _may_be_rounded(array: pa.Array, lines: bytes) -> bool:
    """Whether integers may have lost digits, or numbers have become infinite, on their way to floats."""
    values = _leaves(array)
    if pa.types.is_float32(values.type):
        return bool(pc.any(pc.is_inf(values)).as_py())
    if not pa.types.is_float64(values.type):
        return False
    largest = pc.max(pc.abs(values)).as_py()
    if largest is None or largest < EXACT_INTEGERS:
        return False
    return any(len(found) > _MAX_DIGITS or float(found) != int(found) for found in _LONG_INTEGER.findall(lines))


def _leaves(array: pa.Array) -> pa.Array:
    while pa.types.is_list(array.type):
        array = array.flatten()
    return array


def _leaf(kind: pa.DataType) -> pa.DataType:
    return _leaf(kind.value_type) if pa.types.is_list(kind) else kind


def _moment_type(array: pa.Array) -> pa.DataType:
    """The type of texts: timestamps if all are ISO 8601, without a zone, or in UTC if each has one."""
    given = _leaves(array).drop_null()
    if len(given) and _DATE.match(given[0].as_py()):
        for moment in _MOMENTS:
            try:
                given.cast(moment)
            except pa.ArrowInvalid:
                continue
            return _with_leaf(array.type, moment)
    return array.type


def _with_leaf(kind: pa.DataType, leaf: pa.DataType) -> pa.DataType:
    return pa.list_(_with_leaf(kind.value_type, leaf)) if pa.types.is_list(kind) else leaf


def _large(kind: pa.DataType) -> pa.DataType:
    """Lists of series have 64-bit offsets."""
    return pa.large_list(kind.value_type) if pa.types.is_list(kind) else kind


def _shown(line: bytes) -> str:
    text = line[:64].decode("utf-8", "replace")
    return repr(text if len(line) <= 64 else text[:60] + "…")

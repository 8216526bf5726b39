"""JSON text: `keys_of` finds the keys of many rows, `infer_types` and `build_columns` read rows one by one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.store.formats.base import is_list

_ESCAPE = re.compile(rb"\\.", re.DOTALL)

Types = Mapping[str, pa.DataType]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a repeated key is an error."""
    row = dict(pairs)
    if len(row) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return row


def keys_of(text: bytes, *, top_level: bool = False) -> Iterator[bytes]:
    """The keys of all objects in some JSON (or of the outermost objects), as they are written, with repetitions.

    They are found by their colons alone, in linear time: a parser that makes a column of each must not get too many.
    """
    plain = _ESCAPE.sub(b"xx", text) if b"\\" in text else text
    codes = np.frombuffer(plain, dtype=np.uint8)
    quotes = np.flatnonzero(codes == ord('"'))
    colons = np.flatnonzero(codes == ord(":"))
    before = np.searchsorted(quotes, colons)
    outside = (before % 2 == 0) & (before > 0)
    if top_level:
        marks = np.flatnonzero(_STEPS[codes] != 0)
        marks = marks[np.searchsorted(quotes, marks) % 2 == 0]
        depths = np.concatenate([[0], np.cumsum(_STEPS[codes[marks]], dtype=np.int64)])
        outside &= depths[np.searchsorted(marks, colons)] == 1
    behind = before[outside]
    for begin, end in zip((quotes[behind - 2] + 1).tolist(), quotes[behind - 1].tolist(), strict=True):
        yield text[begin:end]


_STEPS = np.zeros(256, dtype=np.int8)
_STEPS[[ord("["), ord("{")]] = 1
_STEPS[[ord("]"), ord("}")]] = -1


@dataclass(frozen=True, slots=True)
class RowTexts:
    """Rows, or elements of an array, as text: one per line, and their number."""

    lines: bytes
    count: int
    rows_before: int = 0
    column: str | None = None  # where rows are not objects but plain values: the name of their one column


# Rows one by one, in Python: slow and exact, for rows that Arrow cannot parse, and to find errors.

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_FLOAT32_MAX = 3.4028235677973366e38  # from here on, numbers round to infinity
_WORDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "a list"}


class JsonTypeError(Exception):
    """A value that its column cannot hold; `wider` says that another type could hold it and all values before it."""

    def __init__(self, column: str, value: Any, expected: str, *, wider: bool = False) -> None:
        text = value.text if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)
        self.found = text if len(text) <= 64 else text[:60] + "…"
        super().__init__(f"{column}: {self.found}")
        self.column = column
        self.expected = expected.replace("double", "float64").replace("string", "a string")
        self.wider = wider


class Number(float):
    """A float that remembers how it was written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> Number:
        number = super().__new__(cls, text)
        if math.isinf(number):
            raise ValueError(f"{text[:40]} is too large a number for float64")
        number.text = text
        return number


def load(line: bytes, column: str | None) -> dict[str, Any]:
    """One row as an object; a bare value becomes an object with the key `column`."""
    value = json.loads(line.decode(), object_pairs_hook=unique, parse_float=Number)
    if _SURROGATE.search(line):
        json.dumps(value, ensure_ascii=False).encode()  # a lone surrogate is not Unicode
    row = value if column is None else {column: value}
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, found {_WORDS.get(type(row), 'null')}")
    return row


def infer_types(rows: Iterable[dict[str, Any]]) -> dict[str, pa.DataType]:
    """The types that hold all rows; where there is none, the type of the first."""
    types: dict[str, pa.DataType] = {}
    for row in rows:
        merge_types(types, {name: _type_of(value) for name, value in row.items()})
    return types


def build_columns(rows: Iterable[dict[str, Any]], types: Types, known: Collection[str] | None) -> dict[str, pa.Array]:
    """Arrays of given types; a key that is not known is a `ValueError`, a value that does not fit a `JsonTypeError`."""
    columns: dict[str, list[Any]] = {name: [] for name in types}
    for row in rows:
        if known is not None and (extra := [name for name in row if name not in known]):
            raise ValueError(f"it has the key {extra[0]!r}, which the first rows of the file do not have")
        for name, kind in types.items():
            value = row.get(name)
            if isinstance(value, int | float) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                value = value.text if isinstance(value, Number) else json.dumps(value)
            check(name, value, kind)
            columns[name].append(value)
    return {name: arrow_array(values, types[name]) for name, values in columns.items()}


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type to parse before values are cast to `kind`: times as strings, so that time zones are not dropped."""
    if is_list(kind):
        return pa.list_(storage_type(kind.value_type))
    if pa.types.is_temporal(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return pa.string()
    return pa.float64() if pa.types.is_float16(kind) else kind


def arrow_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Python values as the array that is then cast to `kind`."""
    return pa.array(values, type=storage_type(kind))


def check(column: str, value: Any, kind: pa.DataType) -> None:
    """Raise `JsonTypeError` if a value cannot be held by this type without loss."""
    if value is None:
        return
    if pa.types.is_null(kind):
        raise JsonTypeError(column, value, "null", wider=True)
    if is_list(kind):
        if not isinstance(value, list):
            raise JsonTypeError(column, value, "a list")
        for element in value:
            check(column, element, kind.value_type)
        return
    number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    expected: Any = bool if pa.types.is_boolean(kind) else int | float if number else dict if pa.types.is_struct(kind) else str
    if not isinstance(value, expected) or (number and isinstance(value, bool)):
        raise JsonTypeError(column, value, str(kind))
    if pa.types.is_integer(kind):
        if isinstance(value, float):
            raise JsonTypeError(column, value, str(kind), wider=kind == pa.int64())
        bounds = np.iinfo(kind.to_pandas_dtype())
        if not int(bounds.min) <= value <= int(bounds.max):
            raise JsonTypeError(column, value, str(kind), wider=kind == pa.int64() and _exact(value))
    elif number:
        if isinstance(value, int) and not _exact(value):
            raise JsonTypeError(column, value, f"{kind}, which cannot hold all its digits")
        if pa.types.is_float32(kind) and math.isfinite(value) and abs(value) >= _FLOAT32_MAX:
            raise JsonTypeError(column, value, f"{kind}, for which it is too large")


def _exact(value: int) -> bool:
    """Whether float64 holds this integer with all its digits."""
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _type_of(value: Any) -> pa.DataType:
    """The type of one value alone; of mixed lists, that of the first elements."""
    if isinstance(value, list):
        kind = pa.null()
        for element in value:
            kind = _merged(kind, _type_of(element)) or kind
        return pa.list_(kind)
    if isinstance(value, dict):
        return pa.struct([(name, _type_of(element)) for name, element in value.items()])
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int):
        return pa.int64() if -(2**63) <= value < 2**63 else pa.float64()
    return pa.null() if value is None else pa.float64() if isinstance(value, float) else pa.string()


def merge_types(types: dict[str, pa.DataType], others: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """The types that hold the values of both; where there is none, the former. Changes `types`."""
    for name, other in others.items():
        before = types.get(name, pa.null())
        types[name] = _merged(before, other) or before
    return types


def _merged(kind: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds both, or None."""
    if kind == other:
        return kind
    try:
        schemas = [pa.schema([("", each)]) for each in (kind, other)]
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except pa.ArrowException:
        return None

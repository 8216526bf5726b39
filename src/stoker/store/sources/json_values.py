"""JSON values one by one, in Python: slow and exact, for rows that Arrow's parser cannot be given, and to find faults."""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any

import pyarrow as pa

from stoker.store.sources.json_text import unique

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_FLOAT32_MAX = 3.4028235677973366e38  # what rounds to infinity from here on
_WORDS: dict[type, str] = {bool: "a boolean", int: "an integer", float: "a number", str: "text", list: "a list", dict: "an object"}


class Misfit(Exception):
    """A value that its column cannot hold; `wider` says that another type could hold it and all before it."""

    def __init__(self, column: str, value: Any, expected: str, *, wider: bool = False) -> None:
        text = value.text if isinstance(value, Number) else json.dumps(value, ensure_ascii=False)
        self.found = text if len(text) <= 64 else text[:60] + "…"
        super().__init__(f"{column}: {self.found}")
        self.column = column
        self.expected = expected.replace("double", "float64").replace("string", "text")
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


def load(line: bytes, column: str | None) -> Any:
    """One row: an object, made of the bare value where the one `column` is named."""
    value = json.loads(line.decode(), object_pairs_hook=unique, parse_float=Number)
    if _SURROGATE.search(line):
        json.dumps(value, ensure_ascii=False).encode()  # half a character is not Unicode text
    return value if column is None else {column: value}


class RowReader(ABC):
    """Takes rows one by one."""

    @abstractmethod
    def add(self, row: Any) -> None:
        """Take one row; raises `Misfit` or `ValueError` if it does not fit."""

    @abstractmethod
    def finish(self) -> dict[str, Any]:
        """What came of all rows, by column."""


def _object(row: Any) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, found {_WORDS.get(type(row), 'null')}")
    return row


class Guess(RowReader):
    """The types that hold all rows; where there is none, the type of the first."""

    def __init__(self) -> None:
        self._types: dict[str, pa.DataType] = {}

    def add(self, row: Any) -> None:
        self._types = merge_types(self._types, {name: _type_of(value) for name, value in _object(row).items()})

    def finish(self) -> dict[str, Any]:
        return dict(self._types)


class Build(RowReader):
    """Arrays of given types; keys that are not known are refused."""

    def __init__(self, types: Mapping[str, pa.DataType], known: Collection[str] | None) -> None:
        self._types = types
        self._known = known
        self._values: dict[str, list[Any]] = {name: [] for name in types}

    def add(self, row: Any) -> None:
        row = _object(row)
        if self._known is not None and (extra := [name for name in row if name not in self._known]):
            raise ValueError(f"it has the key {extra[0]!r}, which the first rows of the file do not have")
        for name, kind in self._types.items():
            value = row.get(name)
            if isinstance(value, int | float) and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                value = value.text if isinstance(value, Number) else json.dumps(value)
            check(name, value, kind)
            self._values[name].append(value)

    def finish(self) -> dict[str, Any]:
        return {name: arrow_array(values, self._types[name]) for name, values in self._values.items()}


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's parser reads before values are cast to `kind`: times as text, so that time zones are not dropped."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(storage_type(kind.value_type))
    if pa.types.is_temporal(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind):
        return pa.string()
    return pa.float64() if pa.types.is_float16(kind) else kind


def arrow_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Python values as the array that is then cast to `kind`."""
    return pa.array(values, type=storage_type(kind))


def check(column: str, value: Any, kind: pa.DataType) -> None:
    """Raise `Misfit` if a value cannot be held by this type without loss."""
    if value is None:
        return
    if pa.types.is_null(kind):
        raise Misfit(column, value, "null", wider=True)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        if not isinstance(value, list):
            raise Misfit(column, value, "a list")
        for one in value:
            check(column, one, kind.value_type)
    elif pa.types.is_boolean(kind):
        _require(isinstance(value, bool), column, value, kind)
    elif pa.types.is_integer(kind):
        _check_integer(column, value, kind)
    elif pa.types.is_floating(kind):
        _check_float(column, value, kind)
    elif pa.types.is_struct(kind):
        _require(isinstance(value, dict), column, value, kind)
    else:
        _require(isinstance(value, str), column, value, kind)


def _require(fits: bool, column: str, value: Any, kind: pa.DataType) -> None:
    if not fits:
        raise Misfit(column, value, str(kind))


def _check_integer(column: str, value: Any, kind: pa.DataType) -> None:
    _require(isinstance(value, int | float) and not isinstance(value, bool), column, value, kind)
    if isinstance(value, float):
        raise Misfit(column, value, str(kind), wider=kind == pa.int64())
    low, high = (
        (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1)
        if pa.types.is_signed_integer(kind)
        else (0, (1 << kind.bit_width) - 1)
    )
    if not low <= value <= high:
        raise Misfit(column, value, str(kind), wider=kind == pa.int64() and _exact(value))


def _check_float(column: str, value: Any, kind: pa.DataType) -> None:
    _require(isinstance(value, int | float) and not isinstance(value, bool), column, value, kind)
    if isinstance(value, int) and not _exact(value):
        raise Misfit(column, value, f"{kind}, which cannot hold all its digits")
    if pa.types.is_float32(kind) and math.isfinite(value) and abs(value) >= _FLOAT32_MAX:
        raise Misfit(column, value, f"{kind}, for which it is too large")


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
        for one in value:
            kind = _merged(kind, _type_of(one)) or kind
        return pa.list_(kind)
    if isinstance(value, dict):
        return pa.struct([(name, _type_of(one)) for name, one in value.items()])
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


def _merged(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """The type that holds both, or None."""
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_list(one) and pa.types.is_list(other):
        kind = _merged(one.value_type, other.value_type)
        return None if kind is None else pa.list_(kind)
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            kind = _merged(fields.get(field.name, pa.null()), field.type)
            if kind is None:
                return None
            fields[field.name] = kind
        return pa.struct(list(fields.items()))
    return None

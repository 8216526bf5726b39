"""Fields: what becomes of one input column, decided before the first row is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import BadValue, SourceInvalid
from stoker.store.column import Kind, Level


@dataclass(frozen=True, kw_only=True)
class Field:
    """One column on its way: the Arrow type it is read as, and the numbers it is stored as."""

    name: str
    arrow: pa.DataType
    """Type of one value, as asked of sources in text and as found in others."""
    level: Level
    kind: Kind
    dtype: np.dtype[Any]
    """Of the stored numbers; of codes for categories; unused for text."""
    unit: str | None = None
    is_shared: bool = False
    """Whether it is the one column that all series of --wide share: its type is then not chosen for a single input column."""


_TIME_UNITS = {"s", "ms", "us", "ns"}


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The same type without ways of storing it: dictionaries, views, large and fixed-size lists, extensions."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if is_list(kind):
        return pa.large_list(plain_type(kind.value_type))
    return kind


def is_list(kind: pa.DataType) -> bool:
    """Whether a value of this type is a whole series."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def is_number(kind: pa.DataType) -> bool:
    """Whether a value of this type is a number, or no value at all."""
    value = plain_type(kind)
    return bool(pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value) or pa.types.is_null(value))


def asked_type(kind: pa.DataType, asked: str | None) -> pa.DataType:
    """What to ask of text for a type the user named, so that nothing is guessed."""
    if asked is None or is_list(kind) or pa.types.is_dictionary(kind):
        return kind
    if asked in ("text", "category"):
        return pa.string()
    # Narrower floats are asked for as what they are: an integer must not be rounded on its way.
    return pa.float64() if asked == "float64" and pa.types.is_integer(kind) else kind


def make_field(name: str, kind: pa.DataType, *, level: Level, asked: str | None, where: str) -> Field:
    """Decide how values of an Arrow type are stored; `asked` is the type the user wants."""
    dictionary = pa.types.is_dictionary(kind) or (is_list(kind) and pa.types.is_dictionary(kind.value_type))
    value = plain_type(kind)
    value = value.value_type if is_list(value) else value
    if asked in ("category", "text") and not pa.types.is_string(value):
        value = pa.string()
    if pa.types.is_string(value):
        if asked not in (None, "category", "text"):
            raise BadValue(f"column {name!r} of {where} is text, so it cannot become {asked}. Leave it out with --columns.")
        text = level == "series" and not dictionary and asked != "category"
        return Field(name=name, arrow=value, level=level, kind="text" if text else "category", dtype=np.dtype("<i4"))
    if pa.types.is_timestamp(value):
        unit = value.unit + (f", {value.tz}" if value.tz else "")
        return Field(name=name, arrow=value, level=level, kind="timestamp", dtype=np.dtype("<i8"), unit=unit)
    if pa.types.is_date(value):
        unit = "s" if pa.types.is_date32(value) else "ms"
        return Field(name=name, arrow=value, level=level, kind="timestamp", dtype=np.dtype("<i8"), unit=unit)
    if pa.types.is_time(value) or pa.types.is_duration(value):
        return Field(name=name, arrow=value, level=level, kind="duration", dtype=np.dtype("<i8"), unit=value.unit)
    natural = _number_type(name, value, where)
    if asked == "bfloat16":
        return Field(name=name, arrow=value, level=level, kind="bfloat16", dtype=np.dtype("<u2"))
    return Field(name=name, arrow=value, level=level, kind="number", dtype=np.dtype(asked).newbyteorder("<") if asked else natural)


def _number_type(name: str, value: pa.DataType, where: str) -> np.dtype[Any]:
    if pa.types.is_decimal(value) or pa.types.is_null(value):
        return np.dtype("<f8")
    if pa.types.is_boolean(value):
        return np.dtype("|b1")
    if pa.types.is_integer(value) or pa.types.is_floating(value):
        kind: np.dtype[Any] = np.dtype(value.to_pandas_dtype())
        return kind.newbyteorder("<")
    raise SourceInvalid(f"column {name!r} of {where} is {value}, which a store cannot hold. Leave it out with --columns.")


def unify_types(one: pa.DataType, other: pa.DataType, *, inferred: bool) -> pa.DataType | None:
    """The type that holds both, or None. Declared types must agree; inferred ones may widen."""
    a, b = plain_type(one), plain_type(other)
    if a == b:
        return one
    if is_list(a) and is_list(b):
        value = unify_types(a.value_type, b.value_type, inferred=inferred)
        return None if value is None else pa.large_list(value)
    if pa.types.is_null(a) or pa.types.is_null(b):
        return other if pa.types.is_null(a) else one
    if not inferred:
        return None
    if {a, b} == {pa.int64(), pa.float64()}:
        return pa.float64()
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and a.tz == b.tz:
        return pa.timestamp("ns", a.tz)
    if {pa.types.is_date32(a), pa.types.is_date32(b)} == {True, False}:
        moment = b if pa.types.is_date32(a) else a
        return moment if pa.types.is_timestamp(moment) and moment.tz is None else None
    return None

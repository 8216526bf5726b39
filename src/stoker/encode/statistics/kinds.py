"""Kinds: what the values of an Arrow type are taken for. A column of lists has the kind of what its lists hold."""

from __future__ import annotations

from typing import Literal, get_args

import pyarrow as pa

from stoker.errors import OptionError, SourceInvalid
from stoker.store.packing.field import is_list, plain_type

Kind = Literal["number", "category", "date", "empty"]
Asked = Literal["number", "category", "date"]


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of one value: of what lists hold, and without ways of storing it."""
    value = plain_type(kind)
    return value.value_type if is_list(value) else value


def kind_of(name: str, kind: pa.DataType, asked: str | None, where: str) -> Kind:
    """The kind of a column; `asked` is what the user takes it for."""
    found = _natural_kind(kind)
    if found is None:
        raise SourceInvalid(f"column {name!r} of {where} is {kind}, which has no statistics. Leave it out with `columns`.")
    if asked is not None and asked not in get_args(Asked):
        raise OptionError(f"kinds takes column {name!r} for {asked!r}; expected one of {', '.join(get_args(Asked))}.")
    if asked is None or asked == found or found == "empty":
        return found
    value = value_type(kind)
    number = pa.types.is_boolean(value) or pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value)
    if found == "date" or asked == "date" or (asked == "number" and not number):
        raise OptionError(f"kinds takes column {name!r} of {where} for a {asked}, but it is {value}. Leave it out of kinds.")
    return "number" if asked == "number" else "category"


def _natural_kind(kind: pa.DataType) -> Kind | None:
    inner = kind.value_type if is_list(kind) else kind
    value = value_type(kind)
    if pa.types.is_null(value):
        return "empty"
    if pa.types.is_string(value) or pa.types.is_boolean(value) or (pa.types.is_dictionary(inner) and not pa.types.is_nested(value)):
        return "category"
    if pa.types.is_timestamp(value) or pa.types.is_date(value):
        return "date"
    number = pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value)
    return "number" if number or pa.types.is_duration(value) or pa.types.is_time(value) else None

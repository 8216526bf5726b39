"""Column types: how values of an Arrow type are stored, what is asked of text, and which types hold all values read so far.

ColumnPlan       one column: the type it is read as, and the dtype it is stored as
make_field       the plan of a column of some Arrow type
read_types       what to read the columns of a source as
unify_types      the type that holds the values of two
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import BadValueError, SourceInvalidError
from stoker.store.formats.base import DataSource, is_list
from stoker.store.formats.words import mostly_types
from stoker.store.pack.options import PackOptions
from stoker.store.shards import Kind, Level


@dataclass(frozen=True, kw_only=True)
class ColumnPlan:
    """One column: the Arrow type it is read as, and the dtype it is stored as."""

    name: str
    arrow: pa.DataType  # type of one value, as requested from text sources and as found in others
    level: Level
    kind: Kind
    dtype: np.dtype[Any]  # of the stored numbers; of codes for categories; unused for strings
    unit: str | None = None
    is_shared: bool = False
    """Whether it is the one column that all series of `wide=True` share: its type is then not that of a single input column."""

    @property
    def has_mark(self) -> bool:
        """Whether one of its integers means missing."""
        return self.kind in ("timestamp", "duration", "category")

    @property
    def can_be_missing(self) -> bool:
        """Whether the stored type has a value that means missing."""
        return self.has_mark or self.kind == "bfloat16" or self.dtype.kind == "f"


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The logical type, without dictionaries, views, large and fixed-size lists, and extensions.

    Example:
        >>> plain_type(pa.dictionary(pa.int8(), pa.large_string()))
        DataType(string)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if is_list(kind):
        return pa.large_list(plain_type(kind.value_type))
    return kind


def is_number(kind: pa.DataType) -> bool:
    """Whether a value of this type is a number, or always null."""
    value = plain_type(kind)
    return bool(pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value) or pa.types.is_null(value))


def asked_type(kind: pa.DataType, asked: str | None, *, typed: bool = True) -> pa.DataType:
    """The Arrow type to request from text for a type that the user named, so that nothing is inferred."""
    if asked is None or is_list(kind) or pa.types.is_dictionary(kind):
        return kind
    if asked in ("text", "category"):
        return pa.string()
    if not typed and pa.types.is_string(kind):  # its strings are read as numbers, so that a word is named with its row
        return pa.bool_() if asked == "bool" else pa.float64() if "float" in asked else pa.int64()
    # Narrower floats are not requested: an integer must not be rounded while it is parsed.
    return pa.float64() if asked == "float64" and pa.types.is_integer(kind) else kind


def read_types(source: DataSource, schema: pa.Schema, names: Sequence[str], options: PackOptions) -> dict[str, pa.DataType]:
    """The types to read columns as: those asked for, else those found; strings that are mostly numbers are numbers."""
    mostly, types = mostly_types(schema), {}
    for name in names:
        asked, kind = options.dtypes.get(name), schema.field(name).type
        if asked is None and name != options.series:  # a key may be any string
            kind = mostly.get(name, kind)
        types[name] = asked_type(kind, asked, typed=source.typed)
    return types


def make_field(name: str, kind: pa.DataType, *, level: Level, asked: str | None, where: str) -> ColumnPlan:
    """How values of an Arrow type are stored; `asked` is the type that the user named."""
    dictionary = pa.types.is_dictionary(kind) or (is_list(kind) and pa.types.is_dictionary(kind.value_type))
    value = plain_type(kind)
    value = value.value_type if is_list(value) else value
    if asked in ("category", "text") and not pa.types.is_string(value):
        value = pa.string()
    column = partial(ColumnPlan, name=name, arrow=value, level=level)
    if pa.types.is_string(value):
        if asked not in (None, "category", "text"):
            raise BadValueError(
                f"column {name!r} of {where} is a string, so it cannot become {asked}. Leave it out with columns=[...]."
            )
        text = level == "series" and not dictionary and asked != "category"
        return column(kind="text" if text else "category", dtype=np.dtype("<i4"))
    if pa.types.is_timestamp(value):
        return column(kind="timestamp", dtype=np.dtype("<i8"), unit=value.unit + (f", {value.tz}" if value.tz else ""))
    if pa.types.is_date(value):
        return column(kind="timestamp", dtype=np.dtype("<i8"), unit="s" if pa.types.is_date32(value) else "ms")
    if pa.types.is_time(value) or pa.types.is_duration(value):
        return column(kind="duration", dtype=np.dtype("<i8"), unit=value.unit)
    if not is_number(value) and not pa.types.is_boolean(value):
        what = f"column {name!r} of {where} is {value}"
        raise SourceInvalidError(f"{what}, which a store cannot hold. Leave it out with columns=[...].")
    if asked == "bfloat16":
        return column(kind="bfloat16", dtype=np.dtype("<u2"))
    is_float = pa.types.is_decimal(value) or pa.types.is_null(value)
    return column(kind="number", dtype=np.dtype(asked or ("<f8" if is_float else value.to_pandas_dtype())).newbyteorder("<"))


def unify_types(one: pa.DataType, other: pa.DataType, *, inferred: bool) -> pa.DataType | None:
    """The type that holds both, or None. Declared types must agree; inferred ones may widen.

    Example:
        >>> unify_types(pa.int64(), pa.float64(), inferred=True)
        DataType(double)
    """
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


def type_word(kind: pa.DataType) -> str:
    """Return the name of a type in messages."""
    plain = plain_type(kind)
    return "string" if pa.types.is_string(plain) else str(plain)

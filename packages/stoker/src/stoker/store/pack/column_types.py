"""Column types: how values of an Arrow type are stored, what is asked of text, and which types hold all values read so far.

ColumnPlan       one column: the type it is read as, and the dtype it is stored as
make_field       the plan of a column of some Arrow type
read_types       what to read the columns of a source as
unify_types      the type that holds the values of two
SettledTypes     the types that hold all values of some rows, where those of the first block are too narrow
misfit_error     the error for a word among numbers, with its row
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import BadValueError, SourceInvalidError
from stoker.store.formats.base import DataSource, RowLocation, is_list
from stoker.store.formats.words import mostly, mostly_types
from stoker.store.pack.options import PackOptions
from stoker.store.shards import Kind, Level

COMMA_NUMBER = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")


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


class SettledTypes:
    """Types that hold all values read so far."""

    def __init__(self, schema: pa.Schema, options: PackOptions) -> None:
        self._types = dict(zip(schema.names, schema.types, strict=True))
        self._options = options
        self._gaps: set[str] = set()

    def look(self, source: DataSource, table: pa.Table) -> None:
        """Add the values of a chunk."""
        for name, kind in self._types.items():
            column = table.column(name)
            is_text = not source.typed and pa.types.is_string(column.type)
            found = column.type if is_text else asked_type(column.type, self._options.dtypes.get(name))
            text = not source.typed and pa.types.is_string(kind)  # of which some blocks may look like numbers
            settled = kind if text else unify_types(kind, found, inferred=not source.typed)
            if settled is None:
                raise misfit_error([source], name, kind)
            self._types[name] = settled
            if column.null_count or any(is_list(chunk.type) and chunk.flatten().null_count for chunk in column.chunks):
                self._gaps.add(name)

    def schema(self, *, gaps: bool = True) -> pa.Schema:
        """The types so far; with `gaps`, columns with missing values can hold them in a store."""
        filled = self._gaps - {self._options.series} if gaps else set()
        return pa.schema([(name, _nullable(kind) if name in filled else kind) for name, kind in self._types.items()])


def settled_schema(
    sources: Sequence[DataSource],
    schema: pa.Schema,
    options: PackOptions,
    report: Callable[[int], None] = lambda num_rows: None,
    *,
    gaps: bool = True,
) -> pa.Schema:
    """Read all rows of sources of one schema, and give the types that hold all values.

    With `gaps`, columns with missing values have types that can store them. `report` gets the rows of each chunk.
    """
    settled = SettledTypes(schema, options)
    for source in sources:
        for task in source.read(schema if source.typed else None, start=RowLocation(), chunk_bytes=options.chunk_bytes):
            table = task().table
            settled.look(source, table)
            report(table.num_rows)
    return settled.schema(gaps=gaps)


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Integers and booleans with missing values become float64; values that it cannot hold are refused later."""
    if is_list(kind):
        return pa.large_list(_nullable(kind.value_type))
    value = plain_type(kind)
    return pa.float64() if pa.types.is_integer(value) or pa.types.is_boolean(value) else kind


def misfit_error(sources: Sequence[DataSource], name: str, kind: pa.DataType) -> BadValueError:
    """The error for a value that its column cannot hold, with its row; the sources are read again to find it."""
    untyped = [source for source in sources if not source.typed]
    misfits = ((source, find_misfit_in(source, name, kind)) for source in untyped)
    source, found = next((pair for pair in misfits if pair[1] is not None), (sources[0], None))
    what = values_word(kind)
    if found is None:
        return BadValueError(f"column {name!r} of {source.label} holds values that are not {what}.", path=source.path, column=name)
    row, text = found
    if not source.has_null_texts and mostly(pa.array([text])) is not None:
        return BadValueError(
            f"column {name!r} of {source.label} holds {what} as strings, like {text[:60]!r} in row {row:,}. "
            f"Write them without quotes, or pass dtype={{{name!r}: 'category'}} to keep them as words.",
            parameter="dtype",
            path=source.path,
            row=row,
            column=name,
        )
    return BadValueError(
        f"column {name!r} of {source.label} holds {text[:60]!r} in row {row:,}, but most of its values are {what}. "
        f"Fix the file{advice_on(source, text)}, or pass dtype={{{name!r}: 'category'}} to keep all as words.",
        parameter="null" if source.has_null_texts else "dtype",
        path=source.path,
        row=row,
        column=name,
    )


def find_misfit_in(source: DataSource, name: str, kind: pa.DataType) -> tuple[int, str] | None:
    """Return the first row (from 1) and text of a column that is not of this type, if the source can find it."""
    find = getattr(source, "find_misfit", None)
    return find(name, kind) if find is not None else None


def advice_on(source: DataSource, text: str) -> str:
    """What may help with a word among numbers."""
    if not source.has_null_texts:
        return ""
    if COMMA_NUMBER.fullmatch(text.strip()):
        return ", pass Csv(decimal=',') if the comma is the decimal point (pack files with points separately)"
    return f", pass Csv(null={text[:20]!r}) if it means missing"


def values_word(kind: pa.DataType) -> str:
    """Return what values of this type are called in messages."""
    value = plain_type(kind)
    if pa.types.is_timestamp(value) or pa.types.is_date(value):
        return "times"
    return {"int64": "integers", "double": "numbers"}.get(str(value), f"{type_word(kind)} values")


def type_word(kind: pa.DataType) -> str:
    """Return the name of a type in messages."""
    plain = plain_type(kind)
    return "string" if pa.types.is_string(plain) else str(plain)

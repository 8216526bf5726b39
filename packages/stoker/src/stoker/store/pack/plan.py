"""The plan of a pack: which columns, with which types, grouped how.

make_plan      from the schemas of all sources, before any row is packed: files that disagree are found before anything is written
settle_plan    again, after reading all rows once, where inferred types turned out too narrow
make_field     how values of an Arrow type are stored
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from stoker.errors import BadValueError, OptionError, SchemaError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import DataSource, InferredTypeError, RowLocation, is_list
from stoker.store.formats.discover import find_sources
from stoker.store.formats.words import mostly, mostly_types
from stoker.store.manifest import MAX_BYTES, MAX_COLUMNS
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


# Wide tables: each column of each file is a series. Files need not have the same columns or types; only a column that no file has, and
# a time that a file lacks, are errors.

_SHOWN = 3
_MOST_ADVISED = 12  # columns that an error names to be passed


def select_columns(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], options: PackOptions) -> list[pa.Schema]:
    """The columns to read of each source: the named ones that it has, or all, and the time.

    A column without a value takes the type that it has in other files, so that a file without rows fits.
    """
    there = {name for schema in schemas for name in schema.names}
    asked = [*(("columns=", name) for name in options.columns or ()), *(("dtype=", name) for name in options.dtypes)]
    for role, name in asked:
        if name not in there:
            many = f"none of the {len(sources):,} files has it: " if len(sources) > 1 else ""
            raise OptionError(f"{role} names {name!r}, but {many}{_columns_of(sources[0], schemas[0])}.")
    for source, schema in zip(sources, schemas, strict=True):
        if options.time is not None and options.time not in schema.names:
            raise OptionError(
                f"time= names {options.time!r}, but {_columns_of(source, schema)}. "
                "Pack files with and without this time separately, or leave time= out."
            )
    known: dict[str, pa.DataType] = {}
    for schema in schemas:
        for name, kind in zip(schema.names, schema.types, strict=True):
            found = known.get(name)
            if not pa.types.is_null(kind) and (found is None or (is_number(kind) and not is_number(found))):
                known[name] = kind
    shared: dict[pa.Schema, pa.Schema] = {}  # thousands of files have few different schemas
    selected = []
    for source, schema in zip(sources, schemas, strict=True):
        own = set(schema.names)
        names = [name for name in _read_names(schema, options) if name in own]
        if options.time is not None and options.time not in names:
            names.append(options.time)
        types = read_types(source, schema, names, options)
        chosen = pa.schema([(name, known.get(name, kind) if pa.types.is_null(kind) else kind) for name, kind in types.items()])
        selected.append(shared.setdefault(chosen, chosen))
    return selected


def _wide_plan(
    sources: Sequence[DataSource], options: PackOptions, schemas: Sequence[pa.Schema], notes: tuple[str, ...] = ()
) -> PackPlan:
    """Each numeric column of each source is a series, with the column "value" and the time. Others are left out, with notes."""
    kept = {
        schema: pa.schema([field for field in schema if field.name == options.time or is_number(field.type)])
        for schema in dict.fromkeys(schemas)
    }
    if sources[0].name_column is not None:
        raise OptionError(
            "name_column= is not for wide=True, where series are named by their file and column.", parameter="name_column"
        )
    for source, schema in zip(sources, schemas, strict=True):
        if any(is_list(kind) for kind in schema.types):
            raise OptionError(f"wide=True needs tables with one number per cell, but {source.label} holds lists.")
    least = 0 if options.time is None else 1
    giving = [i for i, schema in enumerate(schemas) if len(kept[schema]) > least]
    if not giving:
        several = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
        found = ", ".join(schemas[0].names[:20]) or "other columns"
        raise OptionError(f"wide=True found no numeric column in {sources[0].label}{several}, only {found}.")
    steps: tuple[ColumnPlan, ...] = (_wide_value([kept[schemas[i]] for i in giving], options, sources[0].label),)
    if options.time is not None:
        time = _wide_time(sources, [kept[schema] for schema in schemas], options)
        steps = (time, *steps)
        kept = {
            schema: pa.schema([field.with_type(time.arrow) if field.name == options.time else field for field in found])
            for schema, found in kept.items()
        }
    notes = (*notes, *_left_out(sources, schemas, kept))
    if len(giving) < len(sources):
        of_those = " of those that --columns names" if options.columns is not None else ""
        without = [source.name for i, source in enumerate(sources) if i not in set(giving)]
        notes = (*notes, f"no numeric column{of_those} in {_some(without)}: left out by --wide")
    sources = [sources[i] for i in giving]
    _refuse_large_manifest(sources, pa.schema([]))
    return PackPlan(
        sources=sources,
        options=options,
        grouping="wide",
        schemas=[kept[schemas[i]] for i in giving],
        key=None,
        step=steps,
        series=(),
        notes=notes,
    )


def wide_series(schema: pa.Schema, options: PackOptions) -> list[str]:
    """The series of a wide table: its columns but the time."""
    return [name for name in schema.names if name != options.time]


def _wide_value(schemas: Sequence[pa.Schema], options: PackOptions, where: str) -> ColumnPlan:
    """The step column of the series of wide tables, with the type that holds all their columns."""
    fields = [
        make_field(name, schema.field(name).type, level="step", asked=options.dtypes.get(name, options.dtype), where=where)
        for schema in dict.fromkeys(schemas)
        for name in wide_series(schema, options)
    ]
    # A number that the type of all columns would round is refused later.
    halves = all(field.kind == "bfloat16" for field in fields)
    dtypes = [np.dtype("<f4") if field.kind == "bfloat16" and not halves else field.dtype for field in fields]
    name = "value"
    while name == options.time:
        name += "_"
    return replace(
        fields[0],
        name=name,
        kind="bfloat16" if halves else "number",
        dtype=np.result_type(*dict.fromkeys(dtypes)).newbyteorder("<"),
        arrow=pa.float64(),
        is_shared=True,
    )


def _wide_time(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], options: PackOptions) -> ColumnPlan:
    """The time column of wide tables, which must have one type in all files."""
    name = options.time or ""
    kind = schemas[0].field(name).type
    for source, schema in zip(sources[1:], schemas[1:], strict=True):
        given = schema.field(name).type
        common = unify_types(kind, given, inferred=not source.typed and not sources[0].typed)
        if common is None:
            raise SchemaError(
                f"the time {name!r} of {source.label} is {_word(given)}, but {_word(kind)} in {sources[0].label}. "
                "Pack these files separately, or without time=."
            )
        kind = common
    return make_field(name, kind, level="step", asked=options.dtypes.get(name), where=sources[0].label)


def _left_out(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], kept: dict[pa.Schema, pa.Schema]) -> list[str]:
    """A note for each name that is not numeric: in all files that have it, or in some."""
    without: dict[str, list[str]] = {}
    numeric: dict[str, str] = {}
    for source, schema in zip(sources, schemas, strict=True):
        numbers = set(kept[schema].names)
        for name in schema.names:
            if name in numbers:
                numeric.setdefault(name, source.name)
            else:
                without.setdefault(name, []).append(source.name)
    notes = []
    for name, files in without.items():
        where = f" of {_some(files)}" if name in numeric else ""
        though = f", though it is numeric in {numeric[name]}" if name in numeric else ""
        notes.append(f"column {name!r}{where} is not numeric and was left out by --wide{though}")
    return notes


def _read_names(schema: pa.Schema, options: PackOptions) -> list[str]:
    """The columns to read: all, or those named, with the columns that other options name."""
    if options.columns is None:
        return list(schema.names)
    roles = [name for name in (options.series, options.time) if name is not None and name in schema.names]
    return list(dict.fromkeys([*options.columns, *roles]))


def _columns_of(source: DataSource, schema: pa.Schema) -> str:
    return f"{source.label} has the columns {', '.join(schema.names[:20])}"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


# The plan

Grouping = Literal["key", "file", "row", "wide"]

_ENTRY_BYTES = 100  # of a source or a column in a manifest, at least, without its name


@dataclass(frozen=True, kw_only=True)
class PackPlan:
    """What is read, and how it is stored."""

    sources: Sequence[DataSource]
    options: PackOptions
    grouping: Grouping
    schemas: Sequence[pa.Schema]
    """What is read of each source: the selected columns, with key and time. All the same, except with `wide=True`."""
    key: ColumnPlan | None
    step: tuple[ColumnPlan, ...]
    series: tuple[ColumnPlan, ...]
    notes: tuple[str, ...]
    left_out: tuple[str, ...] = ()  # names of files and folders among the sources that no reader knows

    @property
    def schema(self) -> pa.Schema:
        """What is read of the first source, and of all others except with `wide=True`."""
        return self.schemas[0]

    @property
    def rows_are_series(self) -> bool:
        """Whether a row of the input is a whole series, held in list columns."""
        return any(is_list(kind) for kind in self.schema.types)

    @property
    def time_index(self) -> int | None:
        """Which of the step fields is the time."""
        names = [field.name for field in self.step]
        return names.index(self.options.time) if self.options.time in names else None


def make_plan(sources: Sequence[DataSource], options: PackOptions) -> PackPlan:
    """Plan a pack from the schema of every source.

    Raises:
        SchemaError: sources differ; the message lists all differences.
        OptionError: a column that the options name is missing.
    """
    schemas = [source.schema() for source in sources]
    for source, schema in zip(sources, schemas, strict=True):
        seen: set[str] = set()
        for name in schema.names:
            if (normal := unicodedata.normalize("NFC", name)) in seen:
                raise SourceInvalidError(f"{source.label} has two columns named {name!r}. Rename one of them.")
            seen.add(normal)
    if options.wide:
        return _with_time(_wide_plan(sources, options, select_columns(sources, schemas, options)))
    return _with_time(_plan(sources, options, unify_schemas(sources, schemas, options)))


def settle_plan(plan: PackPlan, report: Callable[[int], None]) -> PackPlan:
    """Read all rows once to find the types that hold all values: of text whose types were inferred wrongly from the first block, and of
    integers that turn out to have missing values. `report` gets the rows so far."""
    return plan_with_types(plan, settled_types(plan, report))


def settled_types(plan: PackPlan, report: Callable[[int], None]) -> list[pa.Schema]:
    """Read all rows, and give the types that hold all values: one schema, or with `wide` one per source."""
    rows = 0

    def count(num_rows: int) -> None:
        nonlocal rows
        rows += num_rows
        report(rows)

    if plan.grouping != "wide":
        return [settled_schema(plan.sources, plan.schema, plan.options, count)]
    shared: dict[pa.Schema, pa.Schema] = {}
    schemas = [settled_schema([one], schema, plan.options, count) for one, schema in zip(plan.sources, plan.schemas, strict=True)]
    return [shared.setdefault(schema, schema) for schema in schemas]


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


def plan_with_types(plan: PackPlan, schemas: list[pa.Schema]) -> PackPlan:
    """The plan with the types that `settled_types` gave."""
    if plan.grouping == "wide":
        settled_plan = _wide_plan(plan.sources, plan.options, schemas, plan.notes)
    else:
        settled_plan = _plan(plan.sources, plan.options, schemas[0])
    return replace(_with_time(settled_plan), left_out=plan.left_out)


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


def _nullable(kind: pa.DataType) -> pa.DataType:
    """Integers and booleans with missing values become float64; values that it cannot hold are refused later."""
    if is_list(kind):
        return pa.large_list(_nullable(kind.value_type))
    value = plain_type(kind)
    return pa.float64() if pa.types.is_integer(value) or pa.types.is_boolean(value) else kind


_COMMA_NUMBER = re.compile(r"[+-]?\d+(\.\d{3})*,\d+")


def misfit_error(sources: Sequence[DataSource], name: str, kind: pa.DataType) -> BadValueError:
    """The error for a value that its column cannot hold, with its row; the sources are read again to find it."""
    untyped = [source for source in sources if not source.typed]
    misfits = ((source, _find_misfit(source, name, kind)) for source in untyped)
    source, found = next((pair for pair in misfits if pair[1] is not None), (sources[0], None))
    what = _values_word(kind)
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
        f"column {name!r} of {source.label} holds {text[:60]!r} in row {row:,}, but its other values are {what}. "
        f"Fix the file{_advice_on(source, text)}, or pass dtype={{{name!r}: 'category'}} to keep all as words.",
        parameter="null" if source.has_null_texts else "dtype",
        path=source.path,
        row=row,
        column=name,
    )


def _values_word(kind: pa.DataType) -> str:
    value = plain_type(kind)
    if pa.types.is_timestamp(value) or pa.types.is_date(value):
        return "times"
    return {"int64": "integers", "double": "numbers"}.get(str(value), f"{_word(kind)} values")


def _find_misfit(source: DataSource, name: str, kind: pa.DataType) -> tuple[int, str] | None:
    find = getattr(source, "find_misfit", None)
    return find(name, kind) if find is not None else None


def _advice_on(source: DataSource, text: str) -> str:
    """What may help with a word among numbers."""
    if not source.has_null_texts:
        return ""
    if _COMMA_NUMBER.fullmatch(text.strip()):
        return ", pass Csv(decimal=',') if the comma is the decimal point"
    return f", pass Csv(null={text[:20]!r}) if it means missing"


def unify_schemas(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], options: PackOptions) -> pa.Schema:
    """One schema for all sources, or an error that lists every way in which they differ."""
    first, differences = schemas[0], []
    first_names = set(first.names)  # a schema makes the list of its names each time, which thousands of columns cannot afford
    named = [("series", options.series), ("time", options.time), *(("columns", name) for name in options.columns or ())]
    for role, name in (*named, *(("dtype", name) for name in options.dtypes)):
        if name is not None and name not in first_names:
            what = f"{role}= names {name!r}, but {_columns_of(sources[0], first)}."
            raise OptionError(what, parameter=role, path=sources[0].path, column=name)
    names = _read_names(first, options)
    types = read_types(sources[0], first, names, options)
    common, advice, same_names = dict.fromkeys(names), "", True
    by_name = options.columns is not None
    for source, schema in zip(sources[1:], schemas[1:], strict=True):
        source_names = set(schema.names)
        extra = [] if by_name else [name for name in schema.names if name not in first_names]
        missing = [name for name in names if name not in source_names]
        if not (by_name or extra or missing) and schema.names != first.names:
            differences.append(f"{source.label} has its columns in another order ({', '.join(schema.names[:8])})")
        differences.extend(f"{source.label} has no column {name!r}" for name in missing)
        differences.extend(f"{source.label} has an extra column {name!r}" for name in extra)
        same_names &= not (extra or missing)
        for name in missing:
            common.pop(name, None)
        for name, found in read_types(source, schema, [name for name in names if name in source_names], options).items():
            kind = unify_types(types[name], found, inferred=not source.typed and not sources[0].typed)
            if kind is None:
                what, advice = _type_difference(sources[0], types[name], source, found, name)
                differences.append(what)
                common.pop(name, None)
            types[name] = kind or types[name]
    if differences:
        shown = "; ".join(differences[:8]) + (f"; and {len(differences) - 8:,} more" if len(differences) > 8 else "")
        raise SchemaError(
            f"{len(differences):,} difference{'s' if len(differences) > 1 else ''} from {sources[0].label}: {shown}. "
            f"{advice if advice and same_names else _advice_on_columns(list(common), options)}",
            parameter="columns",
        )
    return pa.schema([(name, types[name]) for name in names])


def _type_difference(first: DataSource, known: pa.DataType, source: DataSource, found: pa.DataType, name: str) -> tuple[str, str]:
    """How a column differs between two sources, and what may help. Where one holds words, the first of them is named."""
    texts, numbers = (source, known) if pa.types.is_string(plain_type(found)) else (first, found)
    misfit = _find_misfit(texts, name, numbers) if pa.types.is_string(plain_type(known)) or texts is source else None
    if misfit is None:
        what = f"column {name!r} of {source.label} is {_word(found)}, not {_word(known)}"
        return what, f"Fix the files, or pass dtype={{{name!r}: 'category'}}, or columns=[...] without this column."
    other = first if texts is source else source
    row, text = misfit
    what = f"column {name!r} of {texts.label} holds {text[:60]!r} in row {row:,}, but {_values_word(numbers)} in {other.label}"
    if _COMMA_NUMBER.fullmatch(text.strip()):
        return what, f"Pack {texts.label} separately with Csv(decimal=','): files of one pack are written alike."
    return what, f"Fix the files{_advice_on(texts, text)}, or pass dtype={{{name!r}: 'category'}} to keep all as words."


def _advice_on_columns(common: list[str], options: PackOptions) -> str:
    """What helps where files have different columns."""
    roles = {options.series, options.time} - {None}
    values = [name for name in common if name not in roles]
    if not values or not roles <= set(common):
        return "They share no columns to pack: pack them separately."
    shown = ",".join(values) if len(values) <= _MOST_ADVISED and not any("," in name for name in values) else None
    if shown is None:
        return f"Fix the files, or pass columns=[...] with some of the {len(values):,} columns that all of them have."
    return f"Fix the files, or pass columns='{shown}', which all of them have."


def _word(kind: pa.DataType) -> str:
    plain = plain_type(kind)
    return "string" if pa.types.is_string(plain) else str(plain)


def _plan(sources: Sequence[DataSource], options: PackOptions, schema: pa.Schema) -> PackPlan:
    if options.dtypes:
        schema = pa.schema([(n, asked_type(t, options.dtypes.get(n))) for n, t in zip(schema.names, schema.types, strict=True)])
    lists = any(is_list(kind) for kind in schema.types)
    where = sources[0].label
    key, step, series = None, [], []
    for name, kind in zip(schema.names, schema.types, strict=True):
        if name == options.series:
            key = _key_field(name, kind, where)
        elif lists and not is_list(kind):
            series.append(make_field(name, kind, level="series", asked=options.dtypes.get(name), where=where))
        else:
            value = plain_type(kind)
            is_default = name != options.time and is_number(value.value_type if is_list(value) else value)
            asked = options.dtypes.get(name, options.dtype if is_default else None)
            step.append(make_field(name, kind, level="step", asked=asked, where=where))
    # The names of the series are a column too: the key, or the names of the files.
    total = len(step) + len(series) + (key is not None or not (lists or any(source.path is None for source in sources)))
    if total > MAX_COLUMNS:
        raise SourceTooLargeError(
            f"{where} has {len(schema):,} columns, which make {total:,} with the names of the series, but a store has at most "
            f"{MAX_COLUMNS:,}. Pass columns=[...], or wide=True for one series per column."
        )
    _refuse_large_manifest(sources, schema)
    if not step:
        beside = f"has no column left to pack beside {', '.join(schema.names)}" if len(schema) else "has no columns"
        raise OptionError(f"{where} {beside}.")
    if options.time is not None and all(field.name != options.time for field in step):
        raise OptionError(f"time= names {options.time!r}, which has one value per series in {where}; expected one per step.")
    notes = [f"column {f.name!r} was decimal and is stored as float64" for f in (*step, *series) if pa.types.is_decimal(f.arrow)]
    grouping: Grouping = "key" if key is not None else "row" if lists else "file"
    if grouping == "file" and sources[0].name_column is not None:
        raise OptionError(
            f"name_column={sources[0].name_column!r} is for files with several series, but each file is one series here, which has "
            f"the name of the file. Leave it out, or name the column of series: series=.",
            parameter="name_column",
        )
    return PackPlan(
        sources=sources,
        options=options,
        grouping=grouping,
        schemas=[schema] * len(sources),
        key=key,
        step=tuple(step),
        series=tuple(series),
        notes=tuple(notes),
    )


def _with_time(plan: PackPlan) -> PackPlan:
    """The plan with what its options say about time: local times are stored as UTC."""
    options = plan.options
    for i, field in enumerate(plan.step):
        if field.name != options.time:
            continue
        if field.kind not in ("timestamp", "duration", "number"):
            raise BadValueError(
                f"the time column {field.name!r} of {plan.sources[0].label} is a string that is not ISO 8601. "
                "Pass Csv(time_format=), like '%d/%m/%Y %H:%M'."
            )
        if options.timezone is not None:
            _, _, zone = (field.unit or "").partition(", ")
            if field.kind != "timestamp" or zone:
                found = (
                    f"has the zone {zone} already" if zone else f"is {field.dtype.name if field.kind == 'number' else field.kind}"
                )
                raise OptionError(
                    f"timezone={options.timezone!r} is for local times without a zone, but the time column {field.name!r} of "
                    f"{plan.sources[0].label} {found}. Leave timezone= out."
                )
            plan = replace(plan, step=(*plan.step[:i], replace(field, unit=f"ns, {options.timezone}"), *plan.step[i + 1 :]))
    return plan


def widen_integers(plan: PackPlan, why: str) -> PackPlan:
    """Integers and booleans become float64, which has values for missing steps.

    Raises:
        OptionError: `dtype=` asks for another type.
    """
    step = []
    for field in plan.step:
        if field.name == plan.options.time or field.kind != "number" or field.dtype.kind == "f":
            step.append(field)
            continue
        if field.name in plan.options.dtypes or plan.options.dtype is not None:
            raise OptionError(f"column {field.name!r} is {field.dtype.name} by dtype=, but {why}. Choose a float type with dtype=.")
        step.append(replace(field, dtype=np.dtype("<f8")))
    return replace(plan, step=tuple(step))


def _refuse_large_manifest(sources: Sequence[DataSource], schema: pa.Schema) -> None:
    """Before anything is read: a manifest has an entry for every source and column. (The commit checks its size again.)"""
    sources_bytes = sum(len(msgspec.json.encode(source.name)) + _ENTRY_BYTES for source in sources)
    columns_bytes = sum(len(msgspec.json.encode(name)) + _ENTRY_BYTES for name in schema.names)
    if sources_bytes + columns_bytes > MAX_BYTES:
        what = f"{len(sources):,} sources" if sources_bytes > columns_bytes else f"the names of {len(schema):,} columns"
        raise SourceTooLargeError(
            f"{what} need a manifest of {sources_bytes + columns_bytes:,} bytes, but a store has at most {MAX_BYTES:,}. "
            "Pack fewer at a time, or join files."
        )


def _key_field(name: str, kind: pa.DataType, where: str) -> ColumnPlan:
    value = plain_type(kind)
    if pa.types.is_string(value):
        return ColumnPlan(name=name, arrow=value, level="series", kind="text", dtype=np.dtype("|u1"))
    if pa.types.is_integer(value) or pa.types.is_timestamp(value) or pa.types.is_date(value):
        field = make_field(name, value, level="series", asked=None, where=where)
        return replace(field, dtype=np.dtype("<u8") if pa.types.is_uint64(value) else np.dtype("<i8"))
    raise BadValueError(
        f"series={name!r} is {_word(kind)} in {where}; expected a string, an integer or a date (and no missing values)."
    )


def read_table(source: object) -> pa.Table:
    """Read all that `pack` takes as a source into memory; text has the types that hold all its values."""
    options = PackOptions()
    sources = find_sources(source, csv=options.csv, table=True)
    plan = make_plan(sources, options)

    def tables() -> Iterator[pa.Table]:
        for source in sources:
            for task in source.read(plan.schema, start=RowLocation(), chunk_bytes=options.chunk_bytes):
                yield task().table

    try:
        parts = list(tables())
    except InferredTypeError:
        plan = settle_plan(plan, lambda rows: None)
        parts = list(tables())
    table = pa.concat_tables(parts, promote_options="permissive") if parts else plan.schema.empty_table()
    declared = sources[0].schema()
    for i, name in enumerate(table.column_names):  # readers make dictionaries of strings by themselves
        column = table.column(i)
        if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(declared.field(name).type):
            table = table.set_column(i, name, column.cast(column.type.value_type))
    return table

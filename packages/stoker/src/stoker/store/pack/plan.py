"""The plan of a pack: which columns, with which types, grouped how.

make_plan      from the schemas of all sources, before any row is packed: files that disagree are found before anything is written
settle_plan    again, after reading all rows once, where inferred types turned out too narrow
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import msgspec
import numpy as np
import pyarrow as pa

from stoker.errors import BadValueError, OptionError, SourceInvalidError, SourceTooLargeError
from stoker.store.formats.base import DataSource, InferredTypeError, RowLocation, is_list
from stoker.store.formats.discover import find_sources
from stoker.store.manifest import MAX_BYTES, MAX_COLUMNS
from stoker.store.pack.column_types import ColumnPlan, asked_type, is_number, make_field, plain_type, type_word
from stoker.store.pack.options import PackOptions
from stoker.store.pack.schemas import unify_schemas
from stoker.store.pack.settled_types import settled_schema
from stoker.store.pack.wide import left_out_notes, select_columns, some_names, wide_time, wide_value

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
    schemas = [
        settled_schema([source], schema, plan.options, count, others=plan.sources)
        for source, schema in zip(plan.sources, plan.schemas, strict=True)
    ]
    return [shared.setdefault(schema, schema) for schema in schemas]


def plan_with_types(plan: PackPlan, schemas: list[pa.Schema]) -> PackPlan:
    """The plan with the types that `settled_types` gave."""
    if plan.grouping == "wide":
        settled_plan = _wide_plan(plan.sources, plan.options, schemas, plan.notes)
    else:
        settled_plan = _plan(plan.sources, plan.options, schemas[0])
    return replace(_with_time(settled_plan), left_out=plan.left_out)


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
            raise OptionError(f"wide=True needs tables with one number per cell, but {source.label} holds lists.", parameter="wide")
    least = 0 if options.time is None else 1
    giving = [i for i, schema in enumerate(schemas) if len(kept[schema]) > least]
    if not giving:
        several = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
        shown = ", ".join(schemas[0].names[:20]) or "other columns"
        raise OptionError(f"wide=True found no numeric column in {sources[0].label}{several}, only {shown}.", parameter="wide")
    steps: tuple[ColumnPlan, ...] = (wide_value([kept[schemas[i]] for i in giving], options, sources[0].label),)
    if options.time is not None:
        time = wide_time(sources, [kept[schema] for schema in schemas], options)
        steps = (time, *steps)
        kept = {
            schema: pa.schema([field.with_type(time.arrow) if field.name == options.time else field for field in shown])
            for schema, shown in kept.items()
        }
    notes = (*notes, *left_out_notes(sources, schemas, kept))
    if len(giving) < len(sources):
        of_those = " of those that --columns names" if options.columns is not None else ""
        without = [source.name for i, source in enumerate(sources) if i not in set(giving)]
        notes = (*notes, f"no numeric column{of_those} in {some_names(without)}: left out by --wide")
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
        raise OptionError(f"{where} {beside}.", path=where)
    if options.time is not None and all(field.name != options.time for field in step):
        raise OptionError(
            f"time= names {options.time!r}, which has one value per series in {where}; expected one per step.", parameter="time"
        )
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
                "Pass Csv(time_format='...'), like '%d/%m/%Y %H:%M'.",
                parameter="time_format",
            )
        if options.timezone is not None:
            _, _, zone = (field.unit or "").partition(", ")
            if field.kind != "timestamp" or zone:
                kind = (
                    f"has the zone {zone} already" if zone else f"is {field.dtype.name if field.kind == 'number' else field.kind}"
                )
                raise OptionError(
                    f"timezone={options.timezone!r} is for local times without a zone, but the time column {field.name!r} of "
                    f"{plan.sources[0].label} {kind}. Leave timezone= out.",
                    parameter="timezone",
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
            raise OptionError(
                f"column {field.name!r} is {field.dtype.name} by dtype=, but {why}. Choose a float type with dtype=.",
                parameter="dtype",
            )
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
        f"series={name!r} is {type_word(kind)} in {where}; expected a string, an integer or a date (and no missing values)."
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

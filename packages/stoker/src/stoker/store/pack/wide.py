"""Wide tables: each numeric column of each file is a series (`pack(wide=True)`).

Files need not have the same columns or types; only a column that no file has, and a time that a file lacks, are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError, SchemaError
from stoker.store.formats.base import DataSource
from stoker.store.pack.column_types import ColumnPlan, is_number, make_field, read_types, type_word, unify_types
from stoker.store.pack.options import PackOptions
from stoker.store.pack.schemas import columns_of, read_names

_SHOWN = 3


def select_columns(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], options: PackOptions) -> list[pa.Schema]:
    """The columns to read of each source: the named ones that it has, or all, and the time.

    A column without a value takes the type that it has in other files, so that a file without rows fits.
    """
    known_names = {name for schema in schemas for name in schema.names}
    asked = [*(("columns=", name) for name in options.columns or ()), *(("dtype=", name) for name in options.dtypes)]
    for role, name in asked:
        if name not in known_names:
            many = f"none of the {len(sources):,} files has it: " if len(sources) > 1 else ""
            raise OptionError(
                f"{role} names {name!r}, but {many}{columns_of(sources[0], schemas[0])}.", parameter=role.removesuffix("=")
            )
    for source, schema in zip(sources, schemas, strict=True):
        if options.time is not None and options.time not in schema.names:
            raise OptionError(
                f"time= names {options.time!r}, but {columns_of(source, schema)}. "
                "Pack files with and without this time separately, or leave time= out.",
                parameter="time",
            )
    known: dict[str, pa.DataType] = {}
    for schema in schemas:
        for name, kind in zip(schema.names, schema.types, strict=True):
            known_kind = known.get(name)
            if not pa.types.is_null(kind) and (known_kind is None or (is_number(kind) and not is_number(known_kind))):
                known[name] = kind
    shared: dict[pa.Schema, pa.Schema] = {}  # thousands of files have few different schemas
    selected = []
    for source, schema in zip(sources, schemas, strict=True):
        names_here = set(schema.names)
        names = [name for name in read_names(schema, options) if name in names_here]
        if options.time is not None and options.time not in names:
            names.append(options.time)
        types = read_types(source, schema, names, options)
        chosen = pa.schema([(name, known.get(name, kind) if pa.types.is_null(kind) else kind) for name, kind in types.items()])
        selected.append(shared.setdefault(chosen, chosen))
    return selected


def wide_series(schema: pa.Schema, options: PackOptions) -> list[str]:
    """The series of a wide table: its columns but the time."""
    return [name for name in schema.names if name != options.time]


def wide_value(schemas: Sequence[pa.Schema], options: PackOptions, where: str) -> ColumnPlan:
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


def wide_time(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], options: PackOptions) -> ColumnPlan:
    """The time column of wide tables, which must have one type in all files."""
    name = options.time or ""
    kind = schemas[0].field(name).type
    for source, schema in zip(sources[1:], schemas[1:], strict=True):
        given = schema.field(name).type
        common = unify_types(kind, given, inferred=not source.typed and not sources[0].typed)
        if common is None:
            raise SchemaError(
                f"the time {name!r} of {source.label} is {type_word(given)}, but {type_word(kind)} in {sources[0].label}. "
                "Pack these files separately, or without time=."
            )
        kind = common
    return make_field(name, kind, level="step", asked=options.dtypes.get(name), where=sources[0].label)


def left_out_notes(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], kept: dict[pa.Schema, pa.Schema]) -> list[str]:
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
        where = f" of {some_names(files)}" if name in numeric else ""
        though = f", though it is numeric in {numeric[name]}" if name in numeric else ""
        notes.append(f"column {name!r}{where} is not numeric and was left out by --wide{though}")
    return notes


def some_names(names: Sequence[str]) -> str:
    """Return the first names, and how many there are besides them."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")

"""Wide tables: which columns of each file are series, and the one type that holds the numbers of all.

Stands beside the plan, which asks it with `--wide`. The law: files need not have the same columns. Each gives its own, in its own
types; only what no file has, and a time that a file lacks, are refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError
from stoker.store.column import Kind
from stoker.store.packing.field import Field, asked_type, is_list, is_number, make_field
from stoker.store.packing.options import Options
from stoker.store.sources.source import Source

_SHOWN = 3


@dataclass(frozen=True, kw_only=True)
class Wide:
    """The sources that give series, with the columns of each, and the column that all series share."""

    sources: Sequence[Source]
    schemas: Sequence[pa.Schema]
    value: Field
    notes: tuple[str, ...]


def select_columns(sources: Sequence[Source], schemas: Sequence[pa.Schema], options: Options) -> list[pa.Schema]:
    """What is wanted of each source: the named columns that it has, or all, and the time.

    A column without a value takes the type that it has in other files, so that a file without rows fits beside them.
    """
    _refuse_unknown(sources, schemas, options)
    known: dict[str, pa.DataType] = {}
    for schema in schemas:
        for name, kind in zip(schema.names, schema.types, strict=True):
            found = known.get(name)
            if not pa.types.is_null(kind) and (found is None or (is_number(kind) and not is_number(found))):
                known[name] = kind
    shared: dict[pa.Schema, pa.Schema] = {}  # thousands of files have few different ones
    selected = []
    for schema in schemas:
        names = [name for name in dict.fromkeys(options.columns or schema.names) if name in schema.names]
        if options.time is not None and options.time not in names:
            names.append(options.time)
        kinds = [schema.field(name).type for name in names]
        kinds = [known.get(name, kind) if pa.types.is_null(kind) else kind for name, kind in zip(names, kinds, strict=True)]
        one = pa.schema([(n, asked_type(kind, options.dtypes.get(n))) for n, kind in zip(names, kinds, strict=True)])
        selected.append(shared.setdefault(one, one))
    return selected


def _refuse_unknown(sources: Sequence[Source], schemas: Sequence[pa.Schema], options: Options) -> None:
    there = {name for schema in schemas for name in schema.names}
    asked = [*(("--columns", name) for name in options.columns or ()), *(("--dtype", name) for name in options.dtypes)]
    for role, name in asked:
        if name not in there:
            many = f"none of the {len(sources):,} files has it: " if len(sources) > 1 else ""
            raise OptionError(
                f"{role} names {name!r}, but {many}{sources[0].label} has the columns {', '.join(schemas[0].names[:20])}."
            )
    for source, schema in zip(sources, schemas, strict=True):
        if options.time is not None and options.time not in schema.names:
            raise OptionError(
                f"--time names {options.time!r}, but {source.label} has the columns {', '.join(schema.names[:20])}. "
                "Pack files with and without this time apart, or leave --time out."
            )


def widen(sources: Sequence[Source], schemas: Sequence[pa.Schema], options: Options) -> Wide:
    """Leave out what is no number, with notes, and find the type of the column that all series share."""
    kept = {schema: _numbers(schema, options) for schema in dict.fromkeys(schemas)}
    for source, schema in zip(sources, schemas, strict=True):
        if any(is_list(kind) for kind in schema.types):
            raise OptionError(f"--wide is for tables with a number a cell, but {source.label} holds lists.")
    least = 0 if options.time is None else 1
    giving = [i for i, schema in enumerate(schemas) if len(kept[schema]) > least]
    if not giving:
        several = f" and {len(sources) - 1:,} more" if len(sources) > 1 else ""
        found = ", ".join(schemas[0].names[:20]) or "other columns"
        raise OptionError(f"--wide found no numeric column in {sources[0].label}{several}, only {found}.")
    fields = [field for schema in kept.values() for field in _fields(schema, options, sources[0].label)]
    return Wide(
        sources=[sources[i] for i in giving],
        schemas=[kept[schemas[i]] for i in giving],
        value=_shared(fields),
        notes=(*_left_out(sources, schemas, kept), *_without_series(sources, set(giving), options)),
    )


def _numbers(schema: pa.Schema, options: Options) -> pa.Schema:
    """The columns that are series, and the time."""
    return pa.schema([(n, t) for n, t in zip(schema.names, schema.types, strict=True) if n == options.time or is_number(t)])


def _fields(schema: pa.Schema, options: Options, where: str) -> list[Field]:
    pairs = [(name, kind) for name, kind in zip(schema.names, schema.types, strict=True) if name != options.time]
    return [make_field(n, t, level="step", asked=options.dtypes.get(n, options.dtype), where=where) for n, t in pairs]


def _shared(fields: Sequence[Field]) -> Field:
    """The column `value`, in the type that holds those of all columns; what it would round is refused later."""
    halves = all(field.kind == "bfloat16" for field in fields)
    dtypes = [np.dtype("<f4") if field.kind == "bfloat16" and not halves else field.dtype for field in fields]
    common = np.result_type(*dict.fromkeys(dtypes))
    kind: Kind = "bfloat16" if halves else "number"
    return replace(fields[0], name="value", kind=kind, dtype=common.newbyteorder("<"), arrow=pa.float64(), is_shared=True)


def _left_out(sources: Sequence[Source], schemas: Sequence[pa.Schema], kept: dict[pa.Schema, pa.Schema]) -> list[str]:
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


def _without_series(sources: Sequence[Source], giving: set[int], options: Options) -> list[str]:
    names = [source.name for i, source in enumerate(sources) if i not in giving]
    of_those = " of those that --columns names" if options.columns is not None else ""
    return [f"no numeric column{of_those} in {_some(names)}: left out by --wide"] if names else []


def _some(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")

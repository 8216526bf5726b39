"""The schema of several sources: one for all of them, or an error that lists every way in which they differ and what helps."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from stoker.errors import OptionError, SchemaError
from stoker.store.formats.base import DataSource
from stoker.store.pack.column_types import (
    advice_on,
    find_misfit_in,
    plain_type,
    read_types,
    type_word,
    unify_types,
    values_word,
)
from stoker.store.pack.options import PackOptions

_MOST_ADVISED = 12  # columns that an error names to be passed


def unify_schemas(sources: Sequence[DataSource], schemas: Sequence[pa.Schema], options: PackOptions) -> pa.Schema:
    """One schema for all sources, or an error that lists every way in which they differ."""
    first, differences = schemas[0], []
    first_names = set(first.names)  # a schema makes the list of its names each time, which thousands of columns cannot afford
    named = [("series", options.series), ("time", options.time), *(("columns", name) for name in options.columns or ())]
    for role, name in (*named, *(("dtype", name) for name in options.dtypes)):
        if name is not None and name not in first_names:
            what = f"{role}= names {name!r}, but {columns_of(sources[0], first)}."
            raise OptionError(what, parameter=role, path=sources[0].path, column=name)
    names = read_names(first, options)
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
    misfit = find_misfit_in(texts, name, numbers) if pa.types.is_string(plain_type(known)) or texts is source else None
    if misfit is None:
        what = f"column {name!r} of {source.label} is {type_word(found)}, not {type_word(known)}"
        return what, f"Fix the files, or pass dtype={{{name!r}: 'category'}}, or columns=[...] without this column."
    other = first if texts is source else source
    row, text = misfit
    what = f"column {name!r} of {texts.label} holds {text[:60]!r} in row {row:,}, but {values_word(numbers)} in {other.label}"
    return what, f"Fix the files{advice_on(texts, text)}, or pass dtype={{{name!r}: 'category'}} to keep all as words."


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


def read_names(schema: pa.Schema, options: PackOptions) -> list[str]:
    """The columns to read: all, or those named, with the columns that other options name."""
    if options.columns is None:
        return list(schema.names)
    roles = [name for name in (options.series, options.time) if name is not None and name in schema.names]
    return list(dict.fromkeys([*options.columns, *roles]))


def columns_of(source: DataSource, schema: pa.Schema) -> str:
    """Return which columns a source has, for messages."""
    return f"{source.label} has the columns {', '.join(schema.names[:20])}"

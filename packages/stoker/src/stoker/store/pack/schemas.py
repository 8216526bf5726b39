"""The schema of several sources: one for all of them, or an error that lists every way in which they differ and what helps."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from stoker.errors import OptionError, SchemaError
from stoker.store.formats.base import DataSource
from stoker.store.pack.column_types import plain_type, read_types, type_word, unify_types
from stoker.store.pack.misfits import Misfit, advice_on, find_misfits, null_advice, searched_types, values_word
from stoker.store.pack.options import PackOptions

_MOST_SHOWN = 12  # differences that an error lists
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
    common, mixed, advice = dict.fromkeys(names), dict[str, pa.DataType](), ""
    by_name = options.columns is not None
    for source, schema in zip(sources[1:], schemas[1:], strict=True):
        source_names = set(schema.names)
        extra = [] if by_name else [name for name in schema.names if name not in first_names]
        missing = [name for name in names if name not in source_names]
        if not (by_name or extra or missing) and schema.names != first.names:
            differences.append(f"{source.label} has its columns in another order ({', '.join(schema.names[:8])})")
        differences.extend(f"{source.label} has no column {name!r}" for name in missing)
        differences.extend(f"{source.label} has an extra column {name!r}" for name in extra)
        for name in missing:
            common.pop(name, None)
        for name, found in read_types(source, schema, [name for name in names if name in source_names], options).items():
            kind = unify_types(types[name], found, inferred=not source.typed and not sources[0].typed)
            if kind is None and _may_hold_words(sources[0], types[name], source, found):
                types[name] = mixed[name] = found if pa.types.is_string(plain_type(types[name])) else types[name]
                common.pop(name, None)
            elif kind is None:
                differences.append(f"column {name!r} of {source.label} is {type_word(found)}, not {type_word(types[name])}")
                advice = f"Fix the files, or pass dtype={{{name!r}: 'category'}}, or columns=[...] without this column."
                common.pop(name, None)
            types[name] = kind or types[name]
    if differences or mixed:
        searched = searched_types({name: types[name] for name in (*common, *mixed)}, options.dtypes)
        misfits, complete = find_misfits(sources, searched)
        located = {misfit.column for misfit in misfits}
        words = [f"{misfit}, but {values_word(misfit.kind)} elsewhere" for misfit in misfits]
        words += [
            f"column {name!r} is text in some files, {values_word(mixed[name])} in others" for name in mixed if name not in located
        ]
        if not differences:
            advice = advice_on(misfits, complete=complete) if misfits else _advice_on_columns(list(common), options)
        elif len(differences) > 1 or words or not advice:
            told = [misfit for misfit in misfits if misfit.column in common]
            in_all = set[str].intersection(*(set(schema.names) for schema in schemas))
            shared = [name for name in names if name in in_all]
            advice = _advice_on_columns(list(common), options, told, shared=shared)
        differences += words
        shown = "; ".join(differences[:_MOST_SHOWN])
        shown += f"; and {len(differences) - _MOST_SHOWN:,} more" if len(differences) > _MOST_SHOWN else ""
        count = f"{'' if complete else 'at least '}{len(differences):,} difference{'s' if len(differences) > 1 else ''}"
        raise SchemaError(f"{count} from {sources[0].label}: {shown}. {advice}", parameter="columns")
    return pa.schema([(name, types[name]) for name in names])


def _may_hold_words(first: DataSource, known: pa.DataType, source: DataSource, found: pa.DataType) -> bool:
    """Whether a column is text in one of two sources of text, and numbers or times in the other."""
    is_text = [pa.types.is_string(plain_type(kind)) for kind in (known, found)]
    return is_text[0] != is_text[1] and not (source if is_text[1] else first).typed


def _advice_on_columns(
    common: list[str], options: PackOptions, misfits: Sequence[Misfit] = (), *, shared: Sequence[str] = ()
) -> str:
    """What helps where files have different columns, of which those that all have may hold words among numbers."""
    roles = {options.series, options.time} - {None}
    values = [name for name in common if name not in roles]
    if set(common) < set(shared) and roles <= set(shared) and not (values and roles <= set(common)):
        names = ", ".join(shared[:_MOST_ADVISED])
        return f"All have the columns {names}, but write their values in different ways: fix the files, or pack a query that parses them."
    if not values or not roles <= set(common):
        return "They share no columns to pack: pack them separately."
    shown = ",".join(values) if len(values) <= _MOST_ADVISED and not any("," in name for name in values) else None
    if shown is None:
        return f"Fix the files, or pass columns=[...] with some of the {len(values):,} columns that all of them have."
    words = null_advice(misfits).replace(", pass", ", and", 1) if misfits else ""
    return f"Fix the files, or pass columns='{shown}', which all of them have{words}."


def read_names(schema: pa.Schema, options: PackOptions) -> list[str]:
    """The columns to read: all, or those named, with the columns that other options name."""
    if options.columns is None:
        return list(schema.names)
    roles = [name for name in (options.series, options.time) if name is not None and name in schema.names]
    return list(dict.fromkeys([*options.columns, *roles]))


def columns_of(source: DataSource, schema: pa.Schema) -> str:
    """Return which columns a source has, for messages."""
    return f"{source.label} has the columns {', '.join(schema.names[:20])}"

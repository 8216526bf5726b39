"""Tables: what the user names, seen as sources; with row and value where a column in memory holds values of different types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import BadValue, OptionError, SourceInvalid
from stoker.store.packing.field import unify_types
from stoker.store.packing.plan import Plan, settle_plan
from stoker.store.sources.dialect import Dialect
from stoker.store.sources.find import find_sources
from stoker.store.sources.source import Place, Source

_SHOWN = 60


def sources_of(given: Any, dialect: Dialect) -> list[Source]:
    """The sources of a path, a pattern, a list of those, a store, or a table in memory; rows are rows, in all formats."""
    if isinstance(given, np.ndarray) and given.dtype.names:
        given = {name: given[name] for name in given.dtype.names}
    if isinstance(given, Mapping):
        given = {name: _read_objects(values) for name, values in given.items()}
    try:
        return find_sources(given, dialect=dialect, table=True)
    except (SourceInvalid, OptionError) as error:
        named = _unreadable(given)
        raise (named if named is not None else error) from None


def _read_objects(values: Any) -> Any:
    """Objects of NumPy as Arrow reads them, where it does: integers beside None are integers, as they are in pandas."""
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1 and _is_readable(values):
        return pa.array(list(values), from_pandas=True)
    return values


def settled_schema(plan: Plan) -> pa.Schema:
    """Types that hold all values, where the first block of a text suggested narrower ones; everything is read for that."""
    types = dict(zip(plan.schema.names, plan.schema.types, strict=True))
    for source in plan.sources:
        asked = plan.schema if source.typed else None
        for task in source.read(asked, start=Place(), chunk_bytes=plan.options.chunk_bytes):
            table = task().table
            for name, kind in types.items():
                found = None if pa.types.is_string(kind) and not source.typed else table.column(name).type
                unified = kind if found is None else unify_types(kind, found, inferred=not source.typed)
                if unified is None:
                    return settle_plan(plan, lambda rows: None).schema  # which names the value that does not fit
                types[name] = unified
    return pa.schema(list(types.items()))


def _is_readable(values: Any) -> bool:
    try:
        pa.array(list(values), from_pandas=True)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return False
    return True


def _unreadable(given: Any) -> BadValue | None:
    """The first value of a column of objects that Arrow cannot read, or whose type is not that of the values before it."""
    named: Iterable[tuple[Any, Any]] = ()
    if isinstance(given, Mapping):
        named = given.items()
    elif type(given).__module__.partition(".")[0] == "pandas":
        named = given.items() if hasattr(given, "columns") else [(given.name or "value", given)]
    for name, values in named:
        objects = isinstance(values, list | tuple) or getattr(values, "dtype", None) == np.dtype(object)
        if objects and not _is_readable(values):  # else something other than this column is wrong
            return _bad_value(name, values) or _mixed_value(name, values)
    return None


def _bad_value(name: Any, values: Iterable[Any]) -> BadValue | None:
    """The first value that cannot be read whatever stands beside it."""
    for row, value in enumerate(values):
        if not _is_readable([value]):
            text = " ".join(repr(value).split())[:_SHOWN]
            large = isinstance(value, int)
            why = "does not fit into 64 bits" if large else "is not a number, string, truth value, date, or list of one of these"
            what = "Make the column floats or strings" if large else "Convert it, or leave the column out"
            return BadValue(f"column {name!r} holds {text} ({type(value).__name__}) in row {row + 1:,}, which {why}. {what}.")
    return None


def _mixed_value(name: Any, values: Iterable[Any]) -> BadValue | None:
    """The first value whose type is not that of the values before it."""
    kinds: set[type] = set()
    for row, value in enumerate(values):
        if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
            continue
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        kind = float if number else type(value)
        if kinds and kind not in kinds:
            before = next(iter(kinds)).__name__ if float not in kinds else "number"
            return BadValue(
                f"column {name!r} holds {repr(value)[:_SHOWN]} ({type(value).__name__}) in row {row + 1:,}, but the values before "
                f"it are of type {before}. Give each column one type."
            )
        kinds.add(kind)
    return None

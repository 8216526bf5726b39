"""When a derived column is computed: with the rows as they are read, or later, from the sorted steps of each series.

    early    expressions over columns of the source that have one value per row, without lag and diff; `where=` is one of them
    late     lag, diff, Python functions, columns that hold lists, and what uses one of these

A column that only expressions use is read, but not stored: `hidden_names`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pyarrow as pa

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.expressions import Expression
from stoker.store.formats.base import is_list
from stoker.store.pack.options import PackOptions, SeriesFunction


def early_names(schema: pa.Schema, options: PackOptions) -> list[str]:
    """Derived columns that are computed as rows are read, in their order. `schema` has the columns of a source, renamed."""
    known = {name for name, kind in zip(schema.names, schema.types, strict=True) if not is_list(kind)}
    found = []
    for name, what in options.derived.items():
        if isinstance(what, Expression) and not what.context and known.issuperset(what.columns):
            known.add(name)
            found.append(name)
    return found


def late_derived(schema: pa.Schema, options: PackOptions) -> dict[str, Expression | SeriesFunction]:
    """Derived columns that are computed from sorted steps. `schema` has the columns of a changed source."""
    return {name: what for name, what in options.derived.items() if name not in schema.names}


def read_names(schema: pa.Schema, options: PackOptions) -> tuple[list[str], frozenset[str]]:
    """The columns to read of a changed source, and those of them that only expressions use."""
    if options.columns is None:
        return list(schema.names), frozenset()
    late = late_derived(schema, options)
    roles = [name for name in (options.series, options.time, options.source_column) if name is not None and name in schema.names]
    derived = [name for name in options.derived if name in schema.names]
    shown = list(dict.fromkeys([*(name for name in options.columns if name not in late), *derived, *roles]))
    used = set(options.condition.columns if options.condition is not None else ())
    for what in options.derived.values():
        used |= set(what.columns) if isinstance(what, Expression) else set()
    hidden = [name for name in schema.names if name in used and name not in shown]
    return [*shown, *hidden], frozenset(hidden)


def late_inputs(late: Mapping[str, Expression | SeriesFunction]) -> set[str]:
    """Columns that expressions over sorted steps read."""
    return {name for what in late.values() if isinstance(what, Expression) for name in what.columns}


def check_late(name: str, what: Expression | SeriesFunction, known: Collection[str], where: str, *, key: str | None) -> None:
    """Refuse an expression that uses a column which steps do not have."""
    if not isinstance(what, Expression):
        return
    for one in what.columns:
        if one not in known:
            is_key = " holds one value per series: first derive a column of rows from it." if one == key else ""
            raise OptionError(
                f"{what.option} is {what.text!r} and uses {one!r}, "
                + (f"which{is_key}" if is_key else f"but {where} has the columns {', '.join(sorted(known)[:20])}.")
            )


def checked_result(what: Expression, values: Array) -> Array:
    """The value of an expression over sorted steps; strings are refused."""
    if values.dtype.kind in "OUS":
        raise OptionError(
            f"{what.option} is {what.text!r} and gives strings, which lag, diff and lists do not support: give numbers."
        )
    return values

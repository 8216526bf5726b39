"""Tables: what the user names, seen as sources; with row and value where a column in memory holds values of different types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.statistics.categories import CategoryGatherer
from stoker.encode.statistics.columns import MAX_DISCRETE, AnyColumn, CategoryColumn, DateColumn, EmptyColumn, NumberColumn, State
from stoker.encode.statistics.dates import DateGatherer
from stoker.encode.statistics.kinds import Kind, Limits, counted_by_key, value_type, with_counts_by_key
from stoker.encode.statistics.numbers import NumberGatherer, count_zeros_once, form_of
from stoker.errors import BadValueError, OptionError, SchemaError, SourceInvalidError
from stoker.store.formats.base import DataSource, RowLocation
from stoker.store.formats.csv import Dialect
from stoker.store.formats.discover import find_sources
from stoker.store.interop import to_numpy
from stoker.store.pack.plan import PackPlan, is_list, settle_plan, unify_types

_SHOWN = 60


def sources_of(given: Any, dialect: Dialect) -> list[DataSource]:
    """The sources of a path, a pattern, a list of those, a store, or a table in memory; rows are rows, in all formats."""
    if isinstance(given, np.ndarray) and given.dtype.names:
        given = {name: given[name] for name in given.dtype.names}
    if isinstance(given, Mapping):
        given = {name: _read_objects(values) for name, values in given.items()}
    try:
        return find_sources(given, dialect=dialect, table=True)
    except (SourceInvalidError, OptionError) as error:
        named = _unreadable(given)
        raise (named if named is not None else error) from None


def _read_objects(values: Any) -> Any:
    """Objects of NumPy as Arrow reads them, where it does: integers beside None are integers, as they are in pandas."""
    if isinstance(values, np.ndarray) and values.dtype == object and values.ndim == 1 and _is_readable(values):
        return pa.array(list(values), from_pandas=True)
    return values


def settled_schema(plan: PackPlan) -> pa.Schema:
    """Types that hold all values, where the first block of a text suggested narrower ones; everything is read for that."""
    types = dict(zip(plan.schema.names, plan.schema.types, strict=True))
    for source in plan.sources:
        asked = plan.schema if source.typed else None
        for task in source.read(asked, start=RowLocation(), chunk_bytes=plan.options.chunk_bytes):
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


def _unreadable(given: Any) -> BadValueError | None:
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


def _bad_value(name: Any, values: Iterable[Any]) -> BadValueError | None:
    """The first value that cannot be read whatever stands beside it."""
    for row, value in enumerate(values):
        if not _is_readable([value]):
            text = " ".join(repr(value).split())[:_SHOWN]
            large = isinstance(value, int)
            why = "does not fit into 64 bits" if large else "is not a number, string, truth value, date, or list of one of these"
            what = "Make the column floats or strings" if large else "Convert it, or leave the column out"
            return BadValueError(f"column {name!r} holds {text} ({type(value).__name__}) in row {row + 1:,}, which {why}. {what}.")
    return None


def _mixed_value(name: Any, values: Iterable[Any]) -> BadValueError | None:
    """The first value whose type is not that of the values before it."""
    kinds: set[type] = set()
    for row, value in enumerate(values):
        if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
            continue
        number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
        kind = float if number else type(value)
        if kinds and kind not in kinds:
            before = next(iter(kinds)).__name__ if float not in kinds else "number"
            return BadValueError(
                f"column {name!r} holds {repr(value)[:_SHOWN]} ({type(value).__name__}) in row {row + 1:,}, but the values before "
                f"it are of type {before}. Give each column one type."
            )
        kinds.add(kind)
    return None


# Gathering: one column as it goes by, whatever its kind; and two parts of it joined.

_SLICE = 1 << 20
"""Rows that are taken in at once: what is sorted with them stays in the caches, and takes little memory."""


class EmptyGatherer:
    """Counts values that are all missing."""

    def __init__(self) -> None:
        self.num_values = 0

    def add(self, values: pa.Array) -> None:
        """Take in values."""
        self.num_values += len(values)

    def column(self, **known: Any) -> EmptyColumn:
        """All that was gathered."""
        return EmptyColumn(**known, num_values=self.num_values, num_null=self.num_values)


Gatherer = NumberGatherer | CategoryGatherer | DateGatherer | EmptyGatherer


class ColumnGatherer:
    """Takes in one column of a table, part by part."""

    def __init__(self, name: str, kind: Kind, arrow: pa.DataType, limits: Limits) -> None:
        value = value_type(arrow)
        self.name = name
        self._type = value
        self._lengths: dict[int, int] | None = {} if is_list(arrow) else None
        self._gatherer = _gatherer(name, kind, pa.int8() if kind == "number" and pa.types.is_boolean(value) else value, limits)

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Take in rows."""
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            for start in range(0, len(chunk), _SLICE):
                self._add(chunk.slice(start, _SLICE))

    def column(self) -> AnyColumn:
        """All that was gathered."""
        lengths = self._lengths
        counted = None if lengths is None else {str(length): lengths[length] for length in sorted(lengths)}
        return self._gatherer.column(name=self.name, type=str(self._type), cnt_lengths=counted)

    def _add(self, values: pa.Array) -> None:
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if self._lengths is not None:
            self._count_lengths(values)
            values = values.flatten()
            for start in range(0, len(values), _SLICE):
                self._add_flat(values.slice(start, _SLICE))
        else:
            self._add_flat(values)

    def _add_flat(self, values: pa.Array) -> None:
        if isinstance(values, pa.ExtensionArray):
            values = values.storage
        if pa.types.is_null(values.type):
            values = values.cast(self._type)
        if isinstance(self._gatherer, NumberGatherer):
            if pa.types.is_dictionary(values.type):
                values = values.dictionary_decode()
            if pa.types.is_boolean(values.type):
                values = values.cast(pa.int8())
        self._gatherer.add(values)

    def _count_lengths(self, values: pa.Array) -> None:
        lengths = self._lengths
        if lengths is not None:
            found = to_numpy(pc.list_value_length(values).drop_null().cast(pa.int64()))
            for length, count in zip(*np.unique(found, return_counts=True), strict=True):
                lengths[int(length)] = lengths.get(int(length), 0) + int(count)


def _gatherer(name: str, kind: Kind, value: pa.DataType, limits: Limits) -> Gatherer:
    if kind == "number":
        return NumberGatherer(form_of(value), limits.exact)
    if kind == "category":
        return CategoryGatherer(limits.categories)
    return DateGatherer(name, limits.exact) if kind == "date" else EmptyGatherer()


def merge_columns(one: AnyColumn, other: AnyColumn, limits: Limits) -> AnyColumn:
    """Join what is known of two parts of one column, in the order of their rows."""
    if isinstance(one, EmptyColumn) or isinstance(other, EmptyColumn):
        return _with_missing(one, other)
    if (one.type, type(one), one.cnt_lengths is None) != (other.type, type(other), other.cnt_lengths is None):
        raise SchemaError(
            f"column {one.name!r} is {_described(one)} in one part and {_described(other)} in another. "
            "Analyse both with the same types and kinds."
        )
    gatherer: Any = _resumed(one, limits)
    gatherer.merge(_resumed(other, limits))
    merged: AnyColumn = gatherer.column(name=one.name, type=one.type, cnt_lengths=_merged_lengths(one, other))
    return _with_keys(one, other, merged)


def _with_keys(one: AnyColumn, other: AnyColumn, merged: AnyColumn) -> AnyColumn:
    """Parts have different keys, so that what is counted by key adds up."""
    if one.num_keys is None or other.num_keys is None:
        return merged
    known: dict[str, Any] = {"num_keys": one.num_keys + other.num_keys}
    if isinstance(one, NumberColumn) and isinstance(other, NumberColumn) and isinstance(merged, NumberColumn):
        known["cnt_values"] = _added_counts(one, other)
        if merged.state is not None:
            known["state"] = with_counts_by_key(merged.state, _added_counts_of_all(one, other, merged.state))
    return msgspec.structs.replace(merged, **known)


def _added_counts(one: NumberColumn, other: NumberColumn) -> dict[str, int] | None:
    if one.cnt_values is None or other.cnt_values is None:
        return None
    counts = dict(one.cnt_values)
    for text, count in other.cnt_values.items():
        counts[text] = counts.get(text, 0) + count
    if "-0.0" in counts and "0.0" in counts:
        counts["0.0"] += counts.pop("-0.0")
    number = float if one.form == "float" else int
    return {text: counts[text] for text in sorted(counts, key=number)} if len(counts) < MAX_DISCRETE else None


def _added_counts_of_all(one: NumberColumn, other: NumberColumn, merged: State) -> npt.NDArray[np.int64] | None:
    """How many keys of both parts have each of the values; None where that is not known."""
    runs = [counted_by_key(part.state) for part in (one, other) if part.state is not None]
    if merged.levels or len(runs) < 2:
        return None
    keys = np.frombuffer(merged.keys, dtype="<u8")
    counts = np.zeros(len(keys), dtype=np.int64)
    for run in runs:
        if run is None:
            return None
        counts[np.searchsorted(keys, run.keys)] += run.counts
    count_zeros_once(keys, counts, one.form)
    return counts


def _resumed(column: AnyColumn, limits: Limits) -> Gatherer:
    if isinstance(column, CategoryColumn):
        return CategoryGatherer.of(column, limits.categories)
    if isinstance(column, EmptyColumn):
        return EmptyGatherer()
    if column.state is None:
        raise OptionError(
            f"column {column.name!r} was saved without what joining needs. Save the parts with `partial=True`, and join those."
        )
    return DateGatherer.of(column, limits.exact) if isinstance(column, DateColumn) else NumberGatherer.of(column, limits.exact)


def _with_missing(one: AnyColumn, other: AnyColumn) -> AnyColumn:
    """One of the parts holds nothing but missing values: they come on top, before or behind."""
    empty, full = (one, other) if isinstance(one, EmptyColumn) else (other, one)
    if full.cnt_lengths is not None and empty.cnt_lengths is None:
        return full  # missing lists hold no values
    added = empty.num_values
    known: dict[str, Any] = {
        "num_values": full.num_values + added,
        "num_null": full.num_null + added,
        "cnt_lengths": _merged_lengths(one, other),
    }
    if isinstance(full, NumberColumn) and full.first_infinite is not None and empty is one:
        known["first_infinite"] = full.first_infinite + added
    if one.num_keys is not None and other.num_keys is not None:
        known["num_keys"] = one.num_keys + other.num_keys
    return msgspec.structs.replace(full, **known)


def _merged_lengths(one: AnyColumn, other: AnyColumn) -> dict[str, int] | None:
    return merge_lengths(one.cnt_lengths, other.cnt_lengths or {})


def merge_lengths(one: dict[str, int] | None, other: dict[str, int] | None) -> dict[str, int] | None:
    """Counts of lengths, added up; None where one is not known."""
    if one is None or other is None:
        return None
    lengths = dict(one)
    for length, count in other.items():
        lengths[length] = lengths.get(length, 0) + count
    return {length: lengths[length] for length in sorted(lengths, key=int)}


def _described(column: AnyColumn) -> str:
    return f"{'lists of ' if column.cnt_lengths is not None else ''}{column.type} (a {column.__struct_config__.tag})"

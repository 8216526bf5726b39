"""Tables of events as the quality report reads them: subjects in the order of their keys, their events in the order of the rows.

`read_pair` opens real, synthetic and holdout tables, checks that they have the same columns, and gives each column a kind: numbers,
times or categories. Categories of all tables share one list of strings, so that equal codes are equal values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker import store
from stoker._types import Array
from stoker.errors import BadValueError, OptionError

Kind = Literal["number", "time", "category"]
MISSING_TIME: int = store.MISSING_TIME
_WORDS = {"number": "numbers", "time": "times", "category": "strings"}


@dataclass(frozen=True, kw_only=True)
class ColumnValues:
    """One column: float64 with NaN, int64 nanoseconds with the least int64, or int32 codes with -1."""

    name: str
    kind: Kind
    data: Array
    texts: Sequence[str] = ()
    """The strings that codes refer to."""

    @cached_property
    def missing(self) -> Array:
        """Which values are missing."""
        if self.kind == "number":
            return np.isnan(self.data)
        return self.data == MISSING_TIME if self.kind == "time" else self.data < 0

    def take(self, rows: Array) -> ColumnValues:
        """The values at some rows; row -1 is missing."""
        data = self.data[rows] if len(self.data) else np.zeros(len(rows), dtype=self.data.dtype)
        if len(rows) and rows.min() < 0:
            data[rows < 0] = {"number": np.nan, "time": MISSING_TIME, "category": -1}[self.kind]
        return replace(self, data=data)


@dataclass(frozen=True, kw_only=True)
class Events:
    """A table of events: rows in the order of the file, and where the rows of each subject are."""

    columns: Mapping[str, ColumnValues]
    context: Mapping[str, ColumnValues]
    """Columns with one value per subject, of the context table or of none."""
    owner: Array
    """The subject of each row; subjects are numbered in the order of their keys."""
    first_rows: Array
    """The subjects in the order of their first row: of the context table, or of the events."""

    @cached_property
    def lengths(self) -> Array:
        """Events per subject."""
        return np.bincount(self.owner, minlength=self.num_subjects)

    @cached_property
    def offsets(self) -> Array:
        """Where the events of each subject begin in `order`; one more entry for the end."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def order(self) -> Array:
        """Rows subject by subject, in the order of the file within each."""
        return np.argsort(self.owner, kind="stable")

    @property
    def num_subjects(self) -> int:
        """Subjects, those of the context table without events included."""
        return len(self.first_rows)

    @property
    def num_rows(self) -> int:
        """Events."""
        return len(self.owner)

    def select(self, subjects: Array) -> Events:
        """Some subjects with their events, renumbered in the order of their keys; `subjects` are sorted."""
        number = np.full(self.num_subjects, -1)
        number[subjects] = np.arange(len(subjects))
        rows = np.flatnonzero(number[self.owner] >= 0)
        return Events(
            columns={name: one.take(rows) for name, one in self.columns.items()},
            context={name: one.take(subjects) for name, one in self.context.items()},
            owner=number[self.owner[rows]],
            first_rows=number[self.first_rows][number[self.first_rows] >= 0],
        )


def join(tables: Sequence[Events]) -> Events:
    """Tables end to end; the subjects of each are other subjects."""
    starts = np.concatenate([[0], np.cumsum([one.num_subjects for one in tables])])

    def glued(columns: Sequence[Mapping[str, ColumnValues]]) -> dict[str, ColumnValues]:
        return {name: replace(one, data=np.concatenate([each[name].data for each in columns])) for name, one in columns[0].items()}

    return Events(
        columns=glued([one.columns for one in tables]),
        context=glued([one.context for one in tables]),
        owner=np.concatenate([one.owner + start for one, start in zip(tables, starts, strict=False)]),
        first_rows=np.concatenate([one.first_rows + start for one, start in zip(tables, starts, strict=False)]),
    )


# ---- reading ----


def read_events(
    tables: Mapping[str, Any], contexts: Mapping[str, Any], *, key: str | None, context_key: str | None = None
) -> dict[str, Events]:
    """The tables of events by their names, the first being the one that decides columns and kinds.

    Args:
        tables: Tables in memory, or paths.
        contexts: The context tables of the same names, or none.
        key: The column of subjects; without one each row is a subject.
        context_key: The key of the context tables; by default the same name.
    """
    opened = {name: read_one(name, given) for name, given in tables.items()}
    around = {f"context of {name}": read_one(f"context of {name}", given) for name, given in contexts.items()}
    for name, table in opened.items():
        if key is not None and key not in table.column_names:
            raise OptionError(f"key={key!r} is not a column of {name}; it has {_listed(table.column_names)}.")
    context_key = context_key or key
    for name, table in around.items():
        if context_key not in table.column_names:
            raise OptionError(f"{name} has no column {context_key!r}; it has {_listed(table.column_names)}.")
    columns = _read_columns(opened, leave_out=key)
    for name, several in columns.items():
        if not several:
            raise OptionError(f"{name} has no column beside the key {key!r}; there is nothing to compare.")
    facts = _read_columns(around, leave_out=context_key) if around else {}
    found = {}
    for name, table in opened.items():
        keys = table.column(key) if key is not None else None
        persons = around.get(f"context of {name}")
        rows, owner, subjects, first_rows = _number_subjects(
            name, keys, persons.column(context_key) if persons is not None else None, table
        )
        events = {one: values.take(rows) if rows is not None else values for one, values in columns[name].items()}
        context = {one: values.take(subjects) for one, values in facts.get(f"context of {name}", {}).items()}
        found[name] = Events(columns=events, context=context, owner=owner, first_rows=first_rows)
    return found


def read_one(name: str, given: Any) -> pa.Table:
    """A table in memory or a file as an Arrow table."""
    if isinstance(given, pa.Table):
        return given
    table = store.read_table(store.find_sources(given, dialect=store.Dialect(), table=True), store.PackOptions())
    if not table.num_columns:
        raise OptionError(f"{name} has no columns.")
    return table


def _number_subjects(
    name: str, keys: pa.ChunkedArray | None, context: pa.ChunkedArray | None, table: pa.Table
) -> tuple[Array | None, Array, Array, Array]:
    """Rows that are kept (None: all), their subjects, the context row of each subject, and subjects by first row."""
    if keys is None:
        everyone = np.arange(table.num_rows)
        return None, everyone, everyone, everyone
    codes, values = _codes(keys)
    if context is not None:
        around, facts = _codes(context)
        if len(facts) < len(around) or (around < 0).any():
            raise OptionError(f"the context of {name} has a key twice, or without a value; expected one row per subject.")
        # Only subjects with a row of context count, as only they can be compared with it.
        place = pc.index_in(values, value_set=facts.cast(values.type)).to_numpy(zero_copy_only=False)
        place = np.where(np.isnan(place), -1, place).astype(np.int64) if place.dtype.kind == "f" else place.astype(np.int64)
        codes, values = np.where(codes >= 0, place[codes], -1), facts
        if (codes < 0).all():
            raise OptionError(f"no key of {name} is in the context of {name}. Check that both use the same ids.")
    order = pc.sort_indices(values).to_numpy()
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order))
    if (codes < 0).any():  # events without a subject cannot be compared
        rows = np.flatnonzero(codes >= 0)
        return rows, rank[codes[rows]], order, rank
    return None, rank[codes], order, rank


def _codes(column: pa.ChunkedArray) -> tuple[Array, pa.Array]:
    """The number of each value in the order of first appearance, -1 for missing, and the values."""
    joined = store.one_array(column)
    encoded = joined if pa.types.is_dictionary(joined.type) else joined.dictionary_encode()
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    if encoded is joined:  # a dictionary of the caller's may hold values that no row has
        seen, first = np.unique(codes[codes >= 0], return_index=True)
        number = np.full(len(encoded.dictionary) + 1, -1)
        number[seen[np.argsort(first)]] = np.arange(len(seen))
        return number[codes], encoded.dictionary.take(pa.array(seen[np.argsort(first)]))
    return codes, encoded.dictionary


def _read_columns(tables: Mapping[str, pa.Table], *, leave_out: str | None) -> dict[str, dict[str, ColumnValues]]:
    """The columns of all tables; names and kinds are those of the first."""
    first, table = next(iter(tables.items()))
    names = sorted(name for name in table.column_names if name != leave_out)
    for name, other in tables.items():
        if unknown := [one for one in other.column_names if one not in table.column_names and one != leave_out]:
            raise OptionError(f"{name} has columns that {first} has not: {_listed(unknown)}. Rename or drop them.")
    found: dict[str, dict[str, ColumnValues]] = {name: {} for name in tables}
    for column in names:
        for name, other in tables.items():
            if column not in other.column_names:
                raise OptionError(f"{name} has no column {column!r}, which {first} has; it has {_listed(other.column_names)}.")
        kind = _kind(table.column(column).type, f"column {column!r} of {first}")
        arrays = [_as_kind(store.one_array(other.column(column)), kind, column, name, first) for name, other in tables.items()]
        if kind == "category":
            codes, texts = _common_codes(arrays)
            read = [ColumnValues(name=column, kind=kind, data=one, texts=texts) for one in codes]
        else:
            read = [ColumnValues(name=column, kind=kind, data=_numbers(one, kind)) for one in arrays]
        for name, values in zip(tables, read, strict=True):
            if kind == "number" and np.isinf(values.data).any():
                row = int(np.flatnonzero(np.isinf(values.data))[0])
                raise BadValueError(
                    f"column {column!r} of {name}, row {row:,}: found {values.data[row]}; expected a finite number. Replace or drop it."
                )
            found[name][column] = values
    return found


def _kind(type_: pa.DataType, where: str) -> Kind:
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
        if not (pa.types.is_string(type_) or pa.types.is_large_string(type_)):
            return "category"
    if pa.types.is_boolean(type_) or pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "number"
    if pa.types.is_duration(type_):
        return "number"
    if pa.types.is_timestamp(type_) or pa.types.is_date(type_):
        return "time"
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_null(type_) or pa.types.is_time(type_):
        return "category"
    raise OptionError(f"{where} has the type {type_}; expected numbers, times, booleans or strings. Leave it out of the table.")


def _as_kind(values: pa.Array, kind: Kind, column: str, name: str, first: str) -> pa.Array:
    """A column in the kind of the first table's; strings that read as such are converted."""
    found = _kind(values.type, f"column {column!r} of {name}")
    if found == kind or pa.types.is_null(values.type):
        return values
    target = {"number": pa.float64(), "time": pa.timestamp("ns"), "category": pa.string()}[kind]
    try:
        if kind == "number" and found == "category":  # truth values come back as text from some generators
            texts = pc.replace_substring_regex(
                pc.replace_substring_regex(values.cast(pa.string()), "^(?i)true$", "1"), "^(?i)false$", "0"
            )
            return texts.cast(target)
        if kind == "time" or found != "time":
            return values.cast(target)
    except pa.ArrowException:
        pass
    raise OptionError(
        f"column {column!r} holds {_WORDS[found]} ({values.type}) in {name}, but {_WORDS[kind]} in {first}. Convert one of them."
    )


def _numbers(values: pa.Array, kind: Kind) -> Array:
    if kind == "time":
        zone = values.type.tz if pa.types.is_timestamp(values.type) else None
        try:
            exact = values.cast(pa.timestamp("ns", zone)).cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise OptionError(f"a time is outside of the years 1678 to 2261, which nanoseconds can hold: {error}") from None
        return np.ascontiguousarray(exact.fill_null(MISSING_TIME).to_numpy(zero_copy_only=False))
    if pa.types.is_decimal(values.type):
        values = store.decimals_as_floats(values)
    elif pa.types.is_duration(values.type):
        values = values.cast(pa.int64())
    elif pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    return np.ascontiguousarray(values.cast(pa.float64(), safe=False).fill_null(np.nan).to_numpy(zero_copy_only=False))


def _common_codes(arrays: Sequence[pa.Array]) -> tuple[list[Array], list[str]]:
    """Codes of several columns of strings into one sorted list."""
    texts = [_strings(one) for one in arrays]
    pool = pc.unique(pa.concat_arrays([one.dictionary.cast(pa.string()) for one in texts]))
    pool = pool.filter(pc.is_valid(pool))
    pool = pool.take(pc.sort_indices(pool))
    found = []
    for one in texts:
        place = pc.index_in(one.dictionary.cast(pa.string()), value_set=pool).fill_null(-1).to_numpy(zero_copy_only=False)
        table = np.append(place, -1).astype(np.int32)
        found.append(table[one.indices.fill_null(-1).to_numpy(zero_copy_only=False)])
    return found, pool.to_pylist()


def _strings(values: pa.Array) -> pa.DictionaryArray:
    if pa.types.is_dictionary(values.type):
        kept = values.dictionary
        kept = kept if pa.types.is_string(kept.type) or pa.types.is_large_string(kept.type) else kept.cast(pa.string())
        return pa.DictionaryArray.from_arrays(values.indices, kept.cast(pa.string()))
    return values.cast(pa.string()).dictionary_encode()


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "")

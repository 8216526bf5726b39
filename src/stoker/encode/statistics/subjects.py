"""Subjects: whose each row is, where a column says so. Then a subject counts once, however many rows it has.

mostlyai-engine calls these keys root keys, and counts by them so that what only a few people have can be told as rare. Values are
brought to their smallest and largest a key, and to different pairs of key and value; what is then gathered is what each kind of
column gathers anyway. Rows of a key may lie anywhere; rows whose key is missing belong to nobody, and count only as rows. Memory
grows with the keys, and with the pairs while values are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.statistics.categories import texts_of_floats
from stoker.encode.statistics.columns import MAX_DISCRETE, AnyColumn, CategoryColumn, DateColumn, NumberColumn
from stoker.encode.statistics.extremes import Extremes
from stoker.encode.statistics.gathering import ColumnGatherer
from stoker.encode.statistics.keys import Keys, decode_keys
from stoker.encode.statistics.kinds import Kind, value_type
from stoker.encode.statistics.limits import Limits
from stoker.encode.statistics.numbers import joined_zeros, keys_of_present, value_texts
from stoker.encode.statistics.runs import Run
from stoker.encode.statistics.states import with_counts_by_key
from stoker.errors import OptionError
from stoker.store.packing.field import is_list
from stoker.store.packing.values import one_array
from stoker.store.sharing import from_numpy, to_numpy

_ENOUGH = 1 << 20
"""Rows that wait before they are brought together."""
_ZEROS = np.array([2**63 - 1, 2**63], dtype=np.uint64)  # the keys of -0.0 and 0.0


class Distinct:
    """Rows that are brought together where they agree in some columns, as they go by."""

    def __init__(self, by: Sequence[str], how: Mapping[str, str]) -> None:
        self._by, self._how = list(by), dict(how)
        self._parts: list[pa.Table] = []
        self._num_waiting = 0

    def add(self, table: pa.Table) -> None:
        """Take in rows; the columns that are no keys have the names of what becomes of them."""
        self._parts.append(self._together(table))
        self._num_waiting += self._parts[-1].num_rows
        if self._num_waiting >= max(_ENOUGH, self._parts[0].num_rows):
            self._combine()

    @property
    def num_rows(self) -> int:
        """Rows that are kept; some of them may still agree."""
        return sum(part.num_rows for part in self._parts)

    def table(self) -> pa.Table | None:
        """All rows, brought together; None where there were none."""
        self._combine()
        return self._parts[0].combine_chunks() if self._parts else None

    def column(self, name: str) -> pa.Array:
        """A column of all rows, brought together; a null array where there were none."""
        table = self.table()
        return pa.nulls(0) if table is None else one_array(table.column(name))

    def _combine(self) -> None:
        if len(self._parts) > 1:
            self._parts = [self._together(pa.concat_tables(self._parts))]
        self._num_waiting = 0

    def _together(self, table: pa.Table) -> pa.Table:
        grouped = table.group_by(self._by, use_threads=False).aggregate(list(self._how.items()))
        return grouped.rename_columns([*self._by, *self._how]).select(table.column_names)


class Subjects:
    """Takes in the rows of a table with their keys."""

    def __init__(self, key: str, schema: pa.Schema, kinds: Mapping[str, Kind], limits: Limits) -> None:
        for name in kinds:
            if is_list(schema.field(name).type):
                raise OptionError(f"column {name!r} holds lists, which cannot be counted by key. Leave it out with `columns`.")
        self.key = key
        self._kinds, self._limits = dict(kinds), limits
        self._types = {name: value_type(schema.field(name).type) for name in kinds}
        self._lengths = Distinct(["key"], {"rows": "sum"})
        self._ranges = {n: Distinct(["key"], {"least": "min", "most": "max"}) for n, k in kinds.items() if k in ("number", "date")}
        self._pairs = {n: Distinct(["key", "value"], {}) for n, kind in kinds.items() if kind in ("number", "category")}
        self._values: dict[str, Keys] = {}

    def add(self, table: pa.Table) -> None:
        """Take in rows."""
        keys = _keys(table.column(self.key))
        known = keys.drop_null()
        self._lengths.add(pa.table({"key": known, "rows": from_numpy(np.ones(len(known), dtype=np.int64))}))
        for name, kind in self._kinds.items():
            values = _plain(table.column(name))
            if kind == "number" and not pa.types.is_null(values.type):
                self._add_numbers(name, keys, values)
            elif kind == "category" and not pa.types.is_null(values.type):
                values = _grouped_type(texts_of_floats(values)) if pa.types.is_floating(values.type) else values
                present = pc.is_valid(values)
                self._pairs[name].add(pa.table({"key": keys.filter(present), "value": values.filter(present)}))
            elif kind == "date":
                present = pc.and_(pc.is_valid(values), pc.is_valid(keys))
                values = values.filter(present)
                self._ranges[name].add(pa.table({"key": keys.filter(present), "least": values, "most": values}))

    def _add_numbers(self, name: str, keys: pa.Array, values: pa.Array) -> None:
        """Numbers as ordered keys: so -0.0 is below 0.0, and each of them stays what it is."""
        numbers, present = keys_of_present(values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values)
        keys, words = keys.filter(from_numpy(present)), from_numpy(numbers)
        known = pc.is_valid(keys)
        least = words.filter(known)
        self._ranges[name].add(pa.table({"key": keys.filter(known), "least": least, "most": least}))
        if name in self._pairs:
            self._pairs[name].add(pa.table({"key": keys, "value": words}))
            if self._are_many(name, words) and self._pairs[name].num_rows > self._limits.exact:
                del self._pairs[name]  # so many values are not counted one by one

    def _are_many(self, name: str, words: pa.Array) -> bool:
        """Whether a column has had too many different values to be always counted one by one."""
        before = self._values.get(name, np.empty(0, dtype=np.uint64))
        if len(before) <= MAX_DISCRETE:  # one more, as two zeros are one value
            self._values[name] = before = np.union1d(before, to_numpy(pc.unique(words)))[: MAX_DISCRETE + 1]
        return len(before) > MAX_DISCRETE

    def lengths(self) -> npt.NDArray[np.int64]:
        """How many rows each key has."""
        rows = self._lengths.column("rows")
        return to_numpy(rows) if len(rows) else np.empty(0, dtype=np.int64)

    def counted(self, column: AnyColumn) -> AnyColumn:
        """What is known of a column, with each key counted once."""
        known: dict[str, Any] = {"num_keys": len(self._lengths.column("key"))}
        if isinstance(column, NumberColumn):
            known |= self._counted_numbers(column)
        elif isinstance(column, DateColumn):
            ranges = self._ranges[column.name]
            least: Any = self._gathered(column.name, ranges.column("least"))
            most: Any = self._gathered(column.name, ranges.column("most"))
            known |= {"min_n": least.min_n, "max_n": most.max_n}
        elif isinstance(column, CategoryColumn):
            known |= self._counted_texts(column.name)
        return msgspec.structs.replace(column, **known)

    def _counted_numbers(self, column: NumberColumn) -> dict[str, Any]:
        form, ranges = column.form, self._ranges[column.name]
        ends = []
        for name in ("least", "most"):
            found = ranges.column(name)
            ends.append(Extremes.of(Run.of(to_numpy(found).copy() if len(found) else np.empty(0, dtype=np.uint64))))
        known: dict[str, Any] = {
            "min_n": decode_keys(ends[0].smallest, form).astype(np.float64).tolist(),
            "max_n": decode_keys(ends[1].largest[::-1], form).astype(np.float64).tolist(),
            "cnt_values": None,
        }
        if column.name in self._pairs and column.state is not None and not column.rank_error:
            run = self._keys_by_value(column)
            known["state"] = with_counts_by_key(column.state, run.counts)
            if column.cnt_values is not None:
                known["cnt_values"] = value_texts(joined_zeros(run, form), form)
        return known

    def _counted_texts(self, name: str) -> dict[str, Any]:
        table = self._pairs[name].table()
        every: Any = self._gathered(name, pa.nulls(0) if table is None else one_array(table.column("value")))
        owned: Any = self._gathered(name, pa.nulls(0) if table is None else _of_known(table, "value"))
        error = max(every.count_error, owned.count_error)
        counts = owned.cnt_values if error else {text: owned.cnt_values.get(text, 0) for text in every.cnt_values}
        return {"cnt_values": counts, "num_distinct": None if error else len(counts), "count_error": error}

    def _keys_by_value(self, column: NumberColumn) -> Run:
        """All values, with how many keys have each; where both zeros occur, a key that has one of them is counted at 0.0."""
        values = np.frombuffer(column.state.keys if column.state is not None else b"", dtype="<u8").astype(np.uint64)
        counts = np.zeros(len(values), dtype=np.int64)
        table = self._pairs[column.name].table()
        if table is not None and table.num_rows:
            owned = to_numpy(_of_known(table, "value"))
            np.add.at(counts, np.searchsorted(values, owned), 1)
            if column.form == "float" and np.isin(_ZEROS, values).all():
                zeros = table.filter(pc.is_in(table.column("value"), value_set=from_numpy(_ZEROS)))
                counts[np.searchsorted(values, _ZEROS)] = 0, pc.count_distinct(zeros.column("key"), mode="only_valid").as_py()
        return Run(values, counts)

    def _gathered(self, name: str, values: pa.Array) -> AnyColumn:
        gatherer = ColumnGatherer(name, self._kinds[name], self._types[name], self._limits)
        gatherer.add(values)
        return gatherer.column()


def _of_known(table: pa.Table, name: str) -> pa.Array:
    """A column of the rows that have a key."""
    return one_array(table.filter(pc.is_valid(table.column("key"))).column(name))


def _keys(column: pa.ChunkedArray) -> pa.Array:
    """One array of a type that Arrow can group by; the two zeros are one key, and NaN is a missing one."""
    keys = _plain(column)
    if not pa.types.is_floating(keys.type):
        return keys
    keys = pc.add(keys.cast(pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(keys), pa.scalar(None, pa.float64()), keys)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """One array without ways of storing its values."""
    values = one_array(column)
    return _grouped_type(values.storage if isinstance(values, pa.ExtensionArray) else values)


def _grouped_type(values: pa.Array) -> pa.Array:
    """A type that Arrow can group by."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values

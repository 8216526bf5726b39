"""Subjects: whose each row is, where a column says so. Then a subject counts once, however many rows it has.

mostlyai-engine calls these keys root keys, and counts by them so that what only a few people have can be told as rare. Values are
brought to their smallest and largest a key, and to different pairs of key and value; what is then gathered is what each kind of
column gathers anyway. Rows of a key may lie anywhere. Memory grows with the keys, and with the pairs while values are counted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.statistics.columns import MAX_DISCRETE, AnyColumn, CategoryColumn, DateColumn, NumberColumn
from stoker.encode.statistics.gathering import ColumnGatherer
from stoker.encode.statistics.kinds import Kind, value_type
from stoker.encode.statistics.limits import Limits
from stoker.errors import BadValue, OptionError
from stoker.store.decimals import decimals_as_floats
from stoker.store.packing.field import is_list
from stoker.store.packing.values import one_array
from stoker.store.sharing import from_numpy, to_numpy

_ENOUGH = 1 << 20
"""Rows that wait before they are brought together."""


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

    def column(self, name: str) -> pa.Array:
        """A column of all rows, brought together; a null array where there were none."""
        self._combine()
        return self._parts[0].column(name).combine_chunks() if self._parts else pa.nulls(0)

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
        self._values: dict[str, pa.Array] = {}
        self._num_rows = 0

    def add(self, table: pa.Table) -> None:
        """Take in rows."""
        keys = _keys(table.column(self.key))
        missing = to_numpy(pc.is_null(keys, nan_is_null=True))
        if missing.any():
            row = self._num_rows + int(missing.argmax())
            raise BadValue(
                f"the key {self.key!r} is missing in row {row + 1:,}. Every row needs a key: fill it, or leave the row out."
            )
        self._num_rows += len(keys)
        self._lengths.add(pa.table({"key": keys, "rows": from_numpy(np.ones(len(keys), dtype=np.int64))}))
        for name in self._kinds:
            self._add(name, keys, _plain(table.column(name)))

    def _add(self, name: str, keys: pa.Array, values: pa.Array) -> None:
        if pa.types.is_null(values.type):
            return
        present = pc.is_valid(values)
        keys, values = keys.filter(present), values.filter(present)
        if name in self._ranges:
            self._ranges[name].add(pa.table({"key": keys, "least": values, "most": values}))
        if name in self._pairs:
            self._pairs[name].add(pa.table({"key": keys, "value": values}))
            if self._kinds[name] == "number" and self._are_many(name, values):
                del self._pairs[name]  # so many values are not counted one by one

    def _are_many(self, name: str, values: pa.Array) -> bool:
        """Whether a column has had too many different values to be counted one by one."""
        before = [self._values[name]] if name in self._values else []
        self._values[name] = pc.unique(pa.concat_arrays([*before, pc.unique(values)]))
        return len(self._values[name]) >= MAX_DISCRETE

    def lengths(self) -> npt.NDArray[np.int64]:
        """How many rows each key has."""
        rows = self._lengths.column("rows")
        return to_numpy(rows) if len(rows) else np.empty(0, dtype=np.int64)

    def counted(self, column: AnyColumn) -> AnyColumn:
        """What is known of a column, with each key counted once."""
        known: dict[str, Any] = {"num_keys": len(self._lengths.column("key"))}
        if isinstance(column, NumberColumn | DateColumn):
            ranges = self._ranges[column.name]
            least: Any = self._gathered(column.name, ranges.column("least"))
            most: Any = self._gathered(column.name, ranges.column("most"))
            known |= {"min_n": least.min_n, "max_n": most.max_n}
        if isinstance(column, NumberColumn | CategoryColumn):
            pairs: Any = None
            if column.name in self._pairs:
                pairs = self._gathered(column.name, self._pairs[column.name].column("value"))
            known["cnt_values"] = None if pairs is None else pairs.cnt_values
            if isinstance(pairs, CategoryColumn):
                known |= {"num_distinct": pairs.num_distinct, "count_error": pairs.count_error}
        return msgspec.structs.replace(column, **known)

    def _gathered(self, name: str, values: pa.Array) -> AnyColumn:
        gatherer = ColumnGatherer(name, self._kinds[name], self._types[name], self._limits)
        gatherer.add(values)
        return gatherer.column()


def _keys(column: pa.ChunkedArray) -> pa.Array:
    """One array of a type that Arrow can group by; the two zeros are one key."""
    keys = one_array(column)
    if isinstance(keys, pa.ExtensionArray):
        keys = keys.storage
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    if pa.types.is_string_view(keys.type):
        keys = keys.cast(pa.large_string())
    return pc.add(keys.cast(pa.float64()), 0.0) if pa.types.is_floating(keys.type) else keys


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """Values like `_keys`, decimals as floats; what is no number or infinite is null too."""
    values = _keys(column)
    if pa.types.is_decimal(values.type):
        values = decimals_as_floats(values)
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_finite(values), values, pa.scalar(None, pa.float64()))
    return values

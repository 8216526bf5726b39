"""Gathering: what is known of each column while its values are read, chunk by chunk; and counts by key.

`ColumnGatherer` takes in the values of one column of any kind, and `CountsByKey` counts each key once, however many rows it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from stoker.errors import OptionError, SourceInvalidError
from stoker.store import from_numpy, is_list, one_array, plain_type, to_numpy
from stoker_recipes.tabular.statistics import numbers
from stoker_recipes.tabular.statistics.dates import DateColumn, DateGatherer
from stoker_recipes.tabular.statistics.numbers import MAX_DISCRETE, NumberColumn, NumberGatherer
from stoker_recipes.tabular.statistics.quantiles import (
    BaseColumn,
    Extremes,
    Form,
    KeyRun,
    Limits,
    decode_keys,
)

# ---- kinds: what the values of an Arrow type are taken for; a column of lists has the kind of its items ----

Kind = Literal["number", "category", "date", "empty"]
Asked = Literal["number", "category", "date"]


def value_type(kind: pa.DataType) -> pa.DataType:
    """The type of one value: the item type of lists, without dictionary or extension types."""
    value = plain_type(kind)
    return value.value_type if is_list(value) else value


def kind_of(name: str, kind: pa.DataType, asked: str | None, where: str) -> Kind:
    """The kind of a column; `asked` is the kind that the user requests."""
    natural = _natural_kind(kind)
    if natural is None:
        raise SourceInvalidError(f"column {name!r} of {where} is {kind}, which has no statistics. Leave it out with `columns`.")
    if asked is not None and asked not in get_args(Asked):
        raise OptionError(f"kinds[{name!r}] is {asked!r}; expected one of {', '.join(get_args(Asked))}.")
    if asked is None or asked == natural or natural == "empty":
        return natural
    value = value_type(kind)
    number = pa.types.is_boolean(value) or pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value)
    if natural == "date" or asked == "date" or (asked == "number" and not number):
        raise OptionError(f"kinds[{name!r}] is {asked!r}, but column {name!r} of {where} is {value}. Leave it out of kinds.")
    return "number" if asked == "number" else "category"


def _natural_kind(kind: pa.DataType) -> Kind | None:
    inner = kind.value_type if is_list(kind) else kind
    value = value_type(kind)
    if pa.types.is_null(value):
        return "empty"
    if pa.types.is_string(value) or pa.types.is_boolean(value) or (pa.types.is_dictionary(inner) and not pa.types.is_nested(value)):
        return "category"
    if pa.types.is_timestamp(value) or pa.types.is_date(value):
        return "date"
    number = pa.types.is_integer(value) or pa.types.is_floating(value) or pa.types.is_decimal(value)
    return "number" if number or pa.types.is_duration(value) or pa.types.is_time(value) else None


# ---- categories: how often each string occurs; exact while they are few, the frequent ones beyond ----
# Where there are more different strings than are kept, the counts of all are lowered by that of the first one too many, and those
# that reach zero are dropped (Misra and Gries). So a count is never too high, and too low by at most `error`, which never exceeds
# the number of values over the number of strings kept, however the values were cut into parts.

MAX_TEXT_BYTES = 64 << 20
"""Bytes of all strings that are kept."""
_MERGE_TEXTS = 1 << 12
ESCAPE, RESERVED = "\x01", ("_RARE_", "<<NULL>>")


class CategoryColumn(BaseColumn, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="category"):
    """A column of strings or booleans."""

    num_distinct: int | None
    """Different strings; null where there are more than are kept."""
    cnt_values: dict[str, int]
    """Count of each string, sorted by string; of the most frequent ones where there are too many."""
    count_error: int
    """Bound on how much a count is too low (a string that is not listed counts 0); 0 means exact."""

    def top(self, num_texts: int) -> dict[str, int]:
        """The most frequent strings, the most frequent first; ties are sorted by string."""
        return dict(sorted(self.cnt_values.items(), key=lambda item: -item[1])[:num_texts])

    def analysis(self) -> dict[str, Any]:
        """What `analyze_categorical` of mostlyai-engine returns for these values."""
        if self.count_error:
            raise OptionError(
                f"column {self.name!r} has more different strings than were kept ({len(self.cnt_values):,}). "
                "Analyse it with a larger `categories`, or with another kind."
            )
        reserved = {text for text in self.cnt_values if text.startswith(ESCAPE) or text in RESERVED}
        counts = {ESCAPE + text if text in reserved else text: count for text, count in self.cnt_values.items()}
        return {"has_nan": self.num_null > 0, "cnt_values": dict(sorted(counts.items()))}


class CategoryGatherer:
    """Takes in Arrow arrays of strings, of dictionaries, or of other values, which count as their Python string."""

    def __init__(self, limit: int) -> None:
        self.num_values = self.num_null = self.error = 0
        self._limit = limit
        self._texts = pa.array([], pa.large_string())
        self._counts = np.empty(0, dtype=np.int64)
        self._buffer: list[tuple[pa.Array, npt.NDArray[np.int64]]] = []
        self._num_buffered = 0

    def add(self, values: pa.Array) -> None:
        """Take in values."""
        self.num_values += len(values)
        if pa.types.is_floating(values.type):
            values = texts_of_floats(values)
        if not pa.types.is_dictionary(values.type):
            values = _grouped_type(values).dictionary_encode()
        indices, texts = values.indices, values.dictionary
        codes = to_numpy((indices.drop_null() if indices.null_count else indices).cast(pa.int64()))
        counts = np.bincount(codes, minlength=len(texts))
        self.num_null += indices.null_count
        used = np.flatnonzero(counts)
        texts, counts = texts.take(from_numpy(used)), counts[used].astype(np.int64)
        if texts.null_count:  # a dictionary may hold null as an entry
            missing = to_numpy(texts.is_null())
            self.num_null += int(counts[missing].sum())
            texts, counts = texts.drop_null(), counts[~missing]
        self._add_counts(_as_texts(texts), counts)

    def column(self, **known: Any) -> CategoryColumn:
        """All that was gathered; `known` are the fields that all columns have."""
        self._combine()
        order = to_numpy(pc.array_sort_indices(self._texts))
        texts = self._texts.take(from_numpy(order)).to_pylist()
        return CategoryColumn(
            **known,
            num_values=self.num_values,
            num_null=self.num_null,
            num_distinct=None if self.error else len(texts),
            cnt_values=dict(zip(texts, self._counts[order].tolist(), strict=True)),
            count_error=self.error,
        )

    def _add_counts(self, texts: pa.Array, counts: npt.NDArray[np.int64]) -> None:
        self._buffer.append((texts, counts))
        self._num_buffered += len(texts)
        if self._num_buffered >= max(_MERGE_TEXTS, len(self._texts)) or len(self._buffer) >= _MERGE_TEXTS:
            self._combine()

    def _combine(self) -> None:
        """Merge the buffered counts, and drop those beyond the limit."""
        if not self._buffer:
            return
        parts = [(self._texts, self._counts), *self._buffer]
        self._buffer, self._num_buffered = [], 0
        encoded = pa.concat_arrays([texts for texts, _ in parts]).dictionary_encode()
        counts = np.zeros(len(encoded.dictionary), dtype=np.int64)
        np.add.at(counts, to_numpy(encoded.indices), np.concatenate([part for _, part in parts]))
        self._texts, self._counts = encoded.dictionary, counts
        num_bytes = to_numpy(pc.binary_length(self._texts))
        if len(counts) > self._limit or num_bytes.sum() > MAX_TEXT_BYTES:
            order = np.argsort(-counts, kind="stable")
            room = min(self._limit, int(np.searchsorted(num_bytes[order].cumsum(), MAX_TEXT_BYTES, side="right")))
            lowered = int(counts[order[room]])
            left = np.flatnonzero(counts > lowered)
            self._texts, self._counts = self._texts.take(from_numpy(left)), counts[left] - lowered
            self.error += lowered


def texts_of_floats(values: pa.Array) -> pa.Array:
    """Floats as a dictionary of strings, each the shortest that its type distinguishes; NaN is missing, -0.0 is not 0.0."""
    numbers = to_numpy(values.fill_null(float("nan")) if values.null_count else values)
    words = numbers.view(f"u{numbers.itemsize}")  # Arrow takes 0.0 and -0.0 for one value
    distinct = np.unique(words[~np.isnan(numbers)])
    codes = np.searchsorted(distinct, words) if len(distinct) else np.zeros(len(words), dtype=np.int64)
    texts = [str(number) for number in distinct.view(numbers.dtype)]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=np.isnan(numbers)), pa.array(texts, pa.large_string()))


def _as_texts(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    return pa.array([str(value) for value in values.to_pylist()], pa.large_string())


_SLICE = 1 << 20
"""Rows per step: what is sorted with them stays in the caches and takes little memory."""


class EmptyColumn(BaseColumn, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="empty"):
    """A column of which every value is missing and the type is unknown."""

    def analysis(self) -> dict[str, Any]:
        """As for a categorical column without values."""
        return {"has_nan": self.num_null > 0, "cnt_values": {}}


AnyColumn = NumberColumn | CategoryColumn | DateColumn | EmptyColumn


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
        self.name = name
        self._type = value_type(arrow)
        self._lengths: Counter[int] | None = Counter() if is_list(arrow) else None
        self._gatherer: Gatherer
        if kind == "number":
            form = numbers.form_of(pa.int8() if pa.types.is_boolean(self._type) else self._type)
            self._gatherer = NumberGatherer(form, limits.exact)
        elif kind == "category":
            self._gatherer = CategoryGatherer(limits.categories)
        else:
            self._gatherer = DateGatherer(name, limits.exact) if kind == "date" else EmptyGatherer()

    def add(self, column: pa.Array | pa.ChunkedArray) -> None:
        """Take in rows."""
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            for start in range(0, len(chunk), _SLICE):
                self._add(chunk.slice(start, _SLICE))

    def column(self) -> AnyColumn:
        """All that was gathered."""
        lengths = None if self._lengths is None else {str(length): count for length, count in sorted(self._lengths.items())}
        return self._gatherer.column(name=self.name, type=str(self._type), cnt_lengths=lengths)

    def _add(self, values: pa.Array) -> None:
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        if self._lengths is None:
            self._add_flat(values)
            return
        lengths = to_numpy(pc.list_value_length(values).drop_null().cast(pa.int64()))
        for length, count in zip(*np.unique(lengths, return_counts=True), strict=True):
            self._lengths[int(length)] += int(count)
        values = values.flatten()
        for start in range(0, len(values), _SLICE):
            self._add_flat(values.slice(start, _SLICE))

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


# ---- counts by key ----
# mostlyai-engine calls these keys root keys, and counts by them to find values that only a few people have. Values are reduced to
# their smallest and largest per key, and to different pairs of key and value; then each kind of column gathers these as usual.
# Rows of a key may be anywhere; rows whose key is missing count only as rows. Memory grows with the keys, and with the pairs while
# values are counted.

_MERGE_ROWS = 1 << 20
"""Rows that are buffered before they are aggregated."""
_ZEROS = np.array([2**63 - 1, 2**63], dtype=np.uint64)  # the keys of -0.0 and 0.0


class Distinct:
    """Rows that are aggregated where they agree in some columns."""

    def __init__(self, by: Sequence[str], how: Mapping[str, str]) -> None:
        self._by, self._how = list(by), dict(how)
        self._parts: list[pa.Table] = []
        self._num_buffered = 0

    def add(self, table: pa.Table) -> None:
        """Take in rows; the other columns are aggregated as `how` says."""
        self._parts.append(self._aggregated(table))
        self._num_buffered += self._parts[-1].num_rows
        if self._num_buffered >= max(_MERGE_ROWS, self._parts[0].num_rows):
            self._combine()

    @property
    def num_rows(self) -> int:
        """Rows that are kept, before the last aggregation."""
        return sum(part.num_rows for part in self._parts)

    def table(self) -> pa.Table | None:
        """All rows, aggregated; None where there were none."""
        self._combine()
        return self._parts[0].combine_chunks() if self._parts else None

    def column(self, name: str) -> pa.Array:
        """A column of all rows, aggregated; a null array where there were none."""
        table = self.table()
        return pa.nulls(0) if table is None else one_array(table.column(name))

    def _combine(self) -> None:
        if len(self._parts) > 1:
            self._parts = [self._aggregated(pa.concat_tables(self._parts))]
        self._num_buffered = 0

    def _aggregated(self, table: pa.Table) -> pa.Table:
        grouped = table.group_by(self._by, use_threads=False).aggregate(list(self._how.items()))
        return grouped.rename_columns([*self._by, *self._how]).select(table.column_names)


class CountsByKey:
    """Counts each key once: takes in the rows of a table with their keys."""

    def __init__(self, key: str, schema: pa.Schema, kinds: Mapping[str, Kind], limits: Limits) -> None:
        for name in kinds:
            if is_list(schema.field(name).type):
                raise OptionError(f"column {name!r} holds lists, which cannot be counted by key. Leave it out of columns=.")
        self.key = key
        self._kinds, self._limits = dict(kinds), limits
        self._types = {name: value_type(schema.field(name).type) for name in kinds}
        self._lengths = Distinct(["key"], {"rows": "sum"})
        self._ranges = {n: Distinct(["key"], {"least": "min", "most": "max"}) for n, k in kinds.items() if k in ("number", "date")}
        self._pairs = {n: Distinct(["key", "value"], {}) for n, kind in kinds.items() if kind in ("number", "category")}
        self._values: dict[str, npt.NDArray[np.uint64]] = {}

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
        ordered, present = numbers.keys_of_present(values.cast(pa.int8()) if pa.types.is_boolean(values.type) else values)
        keys, words = keys.filter(from_numpy(present)), from_numpy(ordered)
        known = pc.is_valid(keys)
        least = words.filter(known)
        self._ranges[name].add(pa.table({"key": keys.filter(known), "least": least, "most": least}))
        if name not in self._pairs:
            return
        self._pairs[name].add(pa.table({"key": keys, "value": words}))
        distinct = self._values.get(name, np.empty(0, dtype=np.uint64))
        if len(distinct) <= MAX_DISCRETE:  # one more, as 0.0 and -0.0 are one value
            self._values[name] = distinct = np.union1d(distinct, to_numpy(pc.unique(words)))[: MAX_DISCRETE + 1]
        if len(distinct) > MAX_DISCRETE and self._pairs[name].num_rows > self._limits.exact:
            del self._pairs[name]  # too many values to count individually

    def lengths(self) -> npt.NDArray[np.int64]:
        """How many rows each key has."""
        rows = self._lengths.column("rows")
        return to_numpy(rows) if len(rows) else np.empty(0, dtype=np.int64)

    def counted(self, column: AnyColumn) -> AnyColumn:
        """The statistics of a column, with each key counted once."""
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
        columns = (ranges.column(name) for name in ("least", "most"))
        keys = (to_numpy(column_of).copy() if len(column_of) else np.empty(0, dtype=np.uint64) for column_of in columns)
        least, most = (Extremes.of(KeyRun.of(key)) for key in keys)
        known: dict[str, Any] = {
            "min_n": decode_keys(least.smallest, form).astype(np.float64).tolist(),
            "max_n": decode_keys(most.largest[::-1], form).astype(np.float64).tolist(),
            "cnt_values": None,
        }
        known["run"] = UNSET
        if column.name in self._pairs and column.run is not UNSET:
            known["run"] = run = self._keys_by_value(column.name, column.run.keys, form)
            if column.cnt_values is not None:
                known["cnt_values"] = numbers.value_texts(numbers.joined_zeros(run, form), form)
        return known

    def _counted_texts(self, name: str) -> dict[str, Any]:
        table = self._pairs[name].table()
        every: Any = self._gathered(name, pa.nulls(0) if table is None else one_array(table.column("value")))
        owned: Any = self._gathered(name, pa.nulls(0) if table is None else _of_known(table, "value"))
        error = max(every.count_error, owned.count_error)
        counts = owned.cnt_values if error else {text: owned.cnt_values.get(text, 0) for text in every.cnt_values}
        return {"cnt_values": counts, "num_distinct": None if error else len(counts), "count_error": error}

    def _keys_by_value(self, name: str, values: npt.NDArray[np.uint64], form: Form) -> KeyRun:
        """All values, with how many keys have each; where both zeros occur, a key that has one of them is counted at 0.0."""
        counts = np.zeros(len(values), dtype=np.int64)
        table = self._pairs[name].table()
        if table is not None and table.num_rows:
            owned = to_numpy(_of_known(table, "value"))
            np.add.at(counts, np.searchsorted(values, owned), 1)
            if form == "float" and np.isin(_ZEROS, values).all():
                zeros = table.filter(pc.is_in(table.column("value"), value_set=from_numpy(_ZEROS)))
                counts[np.searchsorted(values, _ZEROS)] = 0, pc.count_distinct(zeros.column("key"), mode="only_valid").as_py()
        return KeyRun(values, counts)

    def _gathered(self, name: str, values: pa.Array) -> AnyColumn:
        gatherer = ColumnGatherer(name, self._kinds[name], self._types[name], self._limits)
        gatherer.add(values)
        return gatherer.column()


def _of_known(table: pa.Table, name: str) -> pa.Array:
    """A column of the rows that have a key."""
    return one_array(table.filter(pc.is_valid(table.column("key"))).column(name))


def _keys(column: pa.ChunkedArray) -> pa.Array:
    """One array of a type that Arrow can group by; 0.0 and -0.0 are one key, and NaN is a missing one."""
    keys = _plain(column)
    if not pa.types.is_floating(keys.type):
        return keys
    keys = pc.add(keys.cast(pa.float64()), 0.0)
    return pc.if_else(pc.is_nan(keys), pa.scalar(None, pa.float64()), keys)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    """One array without extension and dictionary types."""
    values = one_array(column)
    return _grouped_type(values.storage if isinstance(values, pa.ExtensionArray) else values)


def _grouped_type(values: pa.Array) -> pa.Array:
    """A type that Arrow can group by."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values

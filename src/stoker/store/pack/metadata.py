"""`metadata=` of a pack: a table with one row per series, joined to the finished run by the key of the series.

Strings become categories: codes into a sorted list of strings that the store holds, so that they mean the same in every feed. A column
that has categories already (pandas, polars, Arrow dictionaries) keeps theirs, in their order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import BadValueError, OptionError, SourceTooLargeError
from stoker.store.expressions import Expression
from stoker.store.formats.base import DataSource, InferredTypeError, RowLocation, is_list
from stoker.store.formats.discover import find_sources
from stoker.store.pack.blocks import key_values
from stoker.store.pack.options import PackOptions
from stoker.store.pack.plan import ColumnPlan, PackPlan, make_field, make_plan, plain_type, settle_plan
from stoker.store.pack.values import MAX_CATEGORIES, is_missing, one_array, to_numbers
from stoker.store.shards import MISSING_CODE, MISSING_TIME, ColumnFile, TextFile, fill_null, from_numpy, to_numpy

_PART = 1 << 20  # series handled at a time
_SHOWN = 5  # keys in a message


@dataclass(frozen=True, kw_only=True)
class SeriesColumn:
    """One column of metadata, encoded: a value per row of the table."""

    field: ColumnPlan
    values: Any  # numbers, [rows] or [rows, width], or an Arrow array of strings
    texts: list[str] | None = None
    """The categories that codes refer to."""

    @property
    def missing(self) -> int:
        """Missing values among all rows."""
        if not isinstance(self.values, np.ndarray):
            return int(self.values.null_count)
        return int(is_missing(self.values).sum()) if self.field.can_be_missing else 0

    @property
    def width(self) -> int | None:
        """Numbers per series, where a series has several."""
        return self.values.shape[1] if isinstance(self.values, np.ndarray) and self.values.ndim == 2 else None

    def nullable(self) -> SeriesColumn:
        """The same in a type that has missing values."""
        if self.field.kind == "text" or self.field.can_be_missing:
            return self
        floats = self.values.astype(np.float64)
        if (floats.astype(self.values.dtype) != self.values).any():
            raise BadValueError(
                f"column {self.field.name!r} of metadata= is missing for some series, and holds integers that float64 cannot hold exactly."
            )
        return replace(self, field=replace(self.field, dtype=np.dtype("<f8")), values=floats)

    def take(self, rows: Array) -> Any:
        """The values at these rows; row -1 is missing."""
        if not isinstance(self.values, np.ndarray):
            return self.values.take(pa.array(rows, mask=rows < 0))
        if not len(self.values):
            return np.full((len(rows), *self.values.shape[1:]), self._missing_value, dtype=self.values.dtype)
        found = self.values[rows]
        found[rows < 0] = self._missing_value
        return found

    @property
    def _missing_value(self) -> Any:
        if self.field.kind == "category":
            return MISSING_CODE
        return MISSING_TIME if self.field.kind in ("timestamp", "duration") else np.nan if self.field.dtype.kind == "f" else 0


def encode_column(name: str, column: pa.Array, asked: str | None, locate: Callable[[int], str]) -> SeriesColumn:
    """Encode one column of a table with a row per series."""
    kind = column.type
    if is_list(kind):
        return _encode_lists(name, column, asked, locate)
    field = make_field(name, kind, level="series", asked=asked, where="the metadata")
    if pa.types.is_string(field.arrow):
        if asked == "text":
            return SeriesColumn(field=replace(field, kind="text"), values=_strings(column))
        return _encode_strings(replace(field, kind="category"), column)
    return SeriesColumn(field=(field := _fitting(field, column)), values=to_numbers(column, field, locate))


def _fitting(field: ColumnPlan, values: pa.Array) -> ColumnPlan:
    """Integers and booleans with missing values become float64."""
    has_gaps = values.null_count and field.kind == "number" and field.dtype.kind != "f"
    return replace(field, dtype=np.dtype("<f8")) if has_gaps else field


def _strings(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column.cast(pa.large_string())


def _encode_strings(field: ColumnPlan, column: pa.Array) -> SeriesColumn:
    if pa.types.is_dictionary(column.type) and pa.types.is_string(plain_type(column.type)):
        texts = column.dictionary.to_pylist()
        codes = to_numpy(fill_null(column.indices.cast(pa.int64()), MISSING_CODE)).astype("<i4")
    else:
        encoded = _strings(column).dictionary_encode()
        found = encoded.dictionary.to_pylist()
        texts = sorted(found)
        ranks = {text: i for i, text in enumerate(texts)}
        table = np.array([*(ranks[text] for text in found), MISSING_CODE], dtype="<i4")
        codes = table[to_numpy(fill_null(encoded.indices, len(found)))]
    if len(texts) > MAX_CATEGORIES:
        raise SourceTooLargeError(
            f"column {field.name!r} of the metadata has {len(texts):,} distinct strings, but categories have at most {MAX_CATEGORIES:,}. "
            f"Store them as strings with dtype={{{field.name!r}: 'text'}}, or leave the column out."
        )
    return SeriesColumn(field=field, values=codes, texts=texts)


def _encode_lists(name: str, column: pa.Array, asked: str | None, locate: Callable[[int], str]) -> SeriesColumn:
    """Lists of one length: [rows, width]."""
    lengths = to_numpy(fill_null(pc.list_value_length(column), -1))
    width = int(lengths[0]) if len(lengths) else 0
    if len(lengths) and ((lengths != width).any() or width < 1):
        raise BadValueError(
            f"column {name!r} of the metadata holds lists of {max(int(lengths.min()), 0):,} to {int(lengths.max()):,} values; "
            "expected lists of one length."
        )
    flat = column.flatten()
    field = _fitting(make_field(name, flat.type, level="series", asked=asked, where="the metadata"), flat)
    if field.kind != "number":
        raise BadValueError(f"column {name!r} of the metadata holds lists of {field.kind}; expected lists of numbers.")
    return SeriesColumn(field=field, values=to_numbers(flat, field, lambda i: locate(i // width)).reshape(-1, width))


def read_table(sources: Sequence[DataSource], options: PackOptions) -> pa.Table:
    """Read whole sources that have the same columns; text has the types that hold all its values."""
    plan = make_plan(sources, options)

    def tables() -> Iterator[pa.Table]:
        for source in sources:
            for task in source.read(plan.schema, start=RowLocation(), chunk_bytes=options.chunk_bytes):
                yield task().table

    try:
        parts = list(tables())
    except InferredTypeError:
        plan = settle_plan(plan, lambda rows: None)
        parts = list(tables())
    table = pa.concat_tables(parts, promote_options="permissive") if parts else plan.schema.empty_table()
    declared = sources[0].schema()
    for i, name in enumerate(table.column_names):  # readers make dictionaries of strings by themselves
        column = table.column(i)
        if pa.types.is_dictionary(column.type) and not pa.types.is_dictionary(declared.field(name).type):
            table = table.set_column(i, name, column.cast(column.type.value_type))
    return table


def encode_table(table: pa.Table, dtypes: Mapping[str, str], label: str) -> list[SeriesColumn]:
    """Encode all columns of a table with a row per series."""
    locate = partial(_row_of, label)
    return [encode_column(name, one_array(table.column(name)), dtypes.get(name), locate) for name in table.column_names]


def _row_of(label: str, i: int) -> str:
    return f"row {i + 1:,} of {label}"


class Metadata:
    """The table of `metadata=`, found before the pack and read with it."""

    def __init__(self, given: object, options: PackOptions) -> None:
        self._options = options
        self._sources = find_sources(given, dialect=options.dialect, table=True, limits=options.limits)
        self.label = self._sources[0].label
        names = self._sources[0].schema().names
        self.key = options.metadata_key or options.series or "series"
        if self.key not in names:
            raise OptionError(
                f"metadata= has no column {self.key!r} with the keys of the series: {self.label} has the columns {', '.join(names[:20])}. "
                f"Name that column with metadata_key={', or correct series=' if self.key == options.series else ''}."
            )
        self.names = [name for name in names if name != self.key]
        if not self.names:
            raise OptionError(f"metadata= has no column beside the key {self.key!r} in {self.label}.")
        self.columns: list[SeriesColumn] = []
        self.notes: list[str] = []

    def refuse_condition(self, condition: Expression, sources: Sequence[DataSource]) -> None:
        """Rows are filtered before they are joined."""
        rename = self._options.rename
        there = {rename.get(name, name) for source in sources for name in source.schema().names}
        for name in condition.columns:
            if name in self.names and name not in there:
                raise OptionError(
                    f"where= uses {name!r}, which is a column of metadata=, but rows are filtered as they are read. Choose series when you "
                    f"feed the store: stoker.split.where(store, view, {condition.text!r})."
                )

    def load(self, plan: PackPlan) -> None:
        """Read and encode the table, for the series of a plan."""
        taken = {field.name for field in (*plan.step, *plan.series) if field.name not in plan.hidden}
        taken |= {plan.key.name if plan.key is not None else "series", *(field.name for field, _ in plan.derived)}
        for name in self.names:
            if name in taken:
                raise OptionError(
                    f"metadata= has a column {name!r}, and so has {plan.sources[0].label}. Rename one, or leave it out with columns=."
                )
        field = plan.key or ColumnPlan(name=self.key, arrow=pa.string(), level="series", kind="text", dtype=np.dtype("|u1"))
        if plan.grouping == "row" and plan.key is None:
            raise OptionError("metadata= is joined by the key of the series, so it needs series=.")
        dtypes = {name: kind for name, kind in self._options.dtypes.items() if name in self.names}
        asked = dtypes | ({self.key: "text"} if field.kind == "text" else {})
        table = read_table(self._sources, replace(PackOptions(), dialect=self._options.dialect, dtypes=asked))
        if table.nbytes > self._options.working_bytes // 4:
            raise SourceTooLargeError(
                f"metadata= has {table.nbytes >> 20:,} MB, but is held in memory: at most a quarter of memory=. Pass a larger memory=."
            )
        keys = one_array(table.column(self.key))
        is_text = pa.types.is_string(plain_type(keys.type))
        if is_text != (field.kind == "text"):
            raise BadValueError(
                f"the key {self.key!r} of metadata= is {plain_type(keys.type)}, but {field.name!r} of {plan.sources[0].label} is "
                f"{plain_type(field.arrow)}. Give both one type."
            )
        keys = key_values(keys, replace(field, name=self.key), partial(_row_of, self.label))
        self._order = to_numpy(pc.array_sort_indices(keys)).astype(np.int64)
        self._keys = keys.take(from_numpy(self._order))
        twice = pc.equal(self._keys[:-1], self._keys[1:]) if len(keys) > 1 else None
        if twice is not None and pc.any(twice).as_py():
            repeated = list(dict.fromkeys(self._keys[:-1].filter(twice).to_pylist()))
            raise BadValueError(
                f"metadata= has several rows for {self.key} {_some(repeated, len(repeated))}; expected one per series."
            )
        self.columns = encode_table(table.drop_columns([self.key]), dtypes, self.label)

    def join(self, read_keys: Callable[[int, int], pa.Array], num_series: int, fresh: Callable[[str], Path]) -> dict[str, int]:
        """Find the row of each series, and write each column in the order of the series. Returns the missing values by column.

        Raises:
            BadValueError: series have no metadata, or metadata has no series, and `metadata_missing` is "error".
        """
        rows = ColumnFile.create(fresh("join"), np.dtype("<i8"))
        used = np.zeros(len(self._keys), dtype=bool)
        unknown: list[Any] = []
        num_unknown = 0
        for start in range(0, num_series, _PART):
            keys = read_keys(start, min(start + _PART, num_series))
            found = self._find(keys)
            used[found[found >= 0]] = True
            without = np.flatnonzero(found < 0)
            num_unknown += len(without)
            unknown.extend(keys.take(from_numpy(without[: _SHOWN - len(unknown)])).to_pylist())
            rows.append(found)
        unused = int(len(used) - used.sum())
        if (num_unknown or unused) and self._options.metadata_missing == "error":
            named = self._keys.take(from_numpy(np.sort(np.argsort(self._order)[np.flatnonzero(~used)])[:_SHOWN])).to_pylist()
            parts = [
                *([f"{num_unknown:,} series have no metadata: {_some(unknown, num_unknown)}"] if num_unknown else []),
                *([f"{unused:,} rows of metadata= have no series: {_some(named, unused)}"] if unused else []),
            ]
            raise BadValueError(f"{'; '.join(parts)}. Fix {self.label}, or pass metadata_missing='null'.")
        columns = [column.nullable() if num_unknown else column for column in self.columns]
        self.columns = columns
        self.files = [
            TextFile.create(fresh(f"metadata{i}"))
            if one.field.kind == "text"
            else ColumnFile.create(fresh(f"metadata{i}"), one.field.dtype, one.width)
            for i, one in enumerate(columns)
        ]
        missing = dict.fromkeys((one.field.name for one in columns), 0)
        for start in range(0, num_series, _PART):
            found = rows.read(start, min(start + _PART, num_series))
            for column, file in zip(columns, self.files, strict=True):
                part = replace(column, values=column.take(found))
                missing[column.field.name] += part.missing
                file.append(np.ascontiguousarray(part.values) if isinstance(part.values, np.ndarray) else part.values)
        rows.close()
        if num_unknown or unused:
            self.notes.append(f"{num_unknown:,} series have no metadata, and {unused:,} rows of the metadata have no series")
        return missing

    def _find(self, keys: pa.Array) -> Array:
        """The row of each key, or -1. Only the part of the sorted keys that can hold them is looked up."""
        ends = pc.min_max(keys)
        low = bisect_left(range(len(self._keys)), ends["min"].as_py(), key=lambda i: self._keys[i].as_py())
        high = bisect_right(range(len(self._keys)), ends["max"].as_py(), key=lambda i: self._keys[i].as_py())
        places = to_numpy(fill_null(pc.index_in(keys, value_set=self._keys[low:high]).cast(pa.int64()), -1))
        return np.where(places >= 0, self._order[np.minimum(low + np.maximum(places, 0), len(self._order) - 1)], -1)


def _some(keys: list[Any], count: int) -> str:
    more = count - min(len(keys), _SHOWN)
    return ", ".join(repr(key) for key in keys[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")

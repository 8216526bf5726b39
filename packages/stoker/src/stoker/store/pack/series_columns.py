"""`encode_table`: the columns of a table with one row per series, as a store holds them.

Strings become categories: codes into a sorted list of strings that the store holds, so that they mean the same in every feed. A column
that has categories already (pandas, polars, Arrow dictionaries) keeps theirs, in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker._types import Array
from stoker.errors import BadValueError, SourceTooLargeError
from stoker.store.arrow import fill_null, to_numpy
from stoker.store.formats.base import is_list
from stoker.store.pack.column_types import ColumnPlan, make_field, plain_type
from stoker.store.pack.values import MAX_CATEGORIES, is_missing, one_array, to_numbers
from stoker.store.shards import MISSING_CODE, missing_value


@dataclass(frozen=True, kw_only=True)
class SeriesColumn:
    """One column, encoded: a value per row of the table."""

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

    def take(self, rows: Array) -> Any:
        """The values at these rows; row -1 is missing."""
        if not isinstance(self.values, np.ndarray):
            return self.values.take(pa.array(rows, mask=rows < 0))
        missing = missing_value(self.field.kind) if self.field.can_be_missing else 0
        if not len(self.values):
            return np.full((len(rows), *self.values.shape[1:]), missing, dtype=self.values.dtype)
        taken = self.values[rows]
        taken[rows < 0] = missing
        return taken


def encode_column(name: str, column: pa.Array, asked: str | None, locate: Callable[[int], str]) -> SeriesColumn:
    """Encode one column of a table with a row per series."""
    kind = column.type
    if is_list(kind):
        return _encode_lists(name, column, asked, locate)
    field = make_field(name, kind, level="series", asked=asked, where="the table")
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
        words = encoded.dictionary.to_pylist()
        texts = sorted(words)
        ranks = {text: i for i, text in enumerate(texts)}
        table = np.array([*(ranks[text] for text in words), MISSING_CODE], dtype="<i4")
        codes = table[to_numpy(fill_null(encoded.indices, len(words)))]
    if len(texts) > MAX_CATEGORIES:
        raise SourceTooLargeError(
            f"column {field.name!r} of the table has {len(texts):,} distinct strings, but categories have at most {MAX_CATEGORIES:,}. "
            f"Store them as strings with dtype={{{field.name!r}: 'text'}}, or leave the column out."
        )
    return SeriesColumn(field=field, values=codes, texts=texts)


def _encode_lists(name: str, column: pa.Array, asked: str | None, locate: Callable[[int], str]) -> SeriesColumn:
    """Lists of one length: [rows, width]."""
    lengths = to_numpy(fill_null(pc.list_value_length(column), -1))
    width = int(lengths[0]) if len(lengths) else 0
    if len(lengths) and ((lengths != width).any() or width < 1):
        raise BadValueError(
            f"column {name!r} of the table holds lists of {max(int(lengths.min()), 0):,} to {int(lengths.max()):,} values; "
            "expected lists of one length."
        )
    flat = column.flatten()
    field = _fitting(make_field(name, flat.type, level="series", asked=asked, where="the table"), flat)
    if field.kind != "number":
        raise BadValueError(f"column {name!r} of the table holds lists of {field.kind}; expected lists of numbers.")
    return SeriesColumn(field=field, values=to_numbers(flat, field, lambda i: locate(i // width)).reshape(-1, width))


def encode_table(table: pa.Table, dtypes: Mapping[str, str], label: str) -> list[SeriesColumn]:
    """Encode all columns of a table with a row per series."""
    return [
        encode_column(name, one_array(table.column(name)), dtypes.get(name), lambda i: f"row {i + 1:,} of {label}")
        for name in table.column_names
    ]

"""Categories: how often each text of a column occurs; exact while they are few, the frequent ones beyond.

Where more texts are different than are kept, the counts of all are lowered by that of the first one too many, and what falls
to zero is dropped (Misra and Gries). Law: a count is never too high, and too low by at most `error`, which never exceeds the
number of values over the number of texts kept, however the values were cut into parts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.statistics.columns import CategoryColumn
from stoker.store.interop import from_numpy, to_numpy

MAX_TEXT_BYTES = 64 << 20
"""Of the texts that are kept, all together."""

_ENOUGH = 1 << 12


class CategoryGatherer:
    """Takes in Arrow arrays of texts, of dictionaries, or of other values, which count as their Python text."""

    def __init__(self, limit: int) -> None:
        self.num_values = self.num_null = self.error = 0
        self._limit = limit
        self._texts = pa.array([], pa.large_string())
        self._counts = np.empty(0, dtype=np.int64)
        self._waiting: list[tuple[pa.Array, npt.NDArray[np.int64]]] = []
        self._num_waiting = 0

    @staticmethod
    def of(column: CategoryColumn, limit: int) -> CategoryGatherer:
        """Go on from what is known of a part."""
        gatherer = CategoryGatherer(limit)
        gatherer.num_values, gatherer.num_null, gatherer.error = column.num_values, column.num_null, column.count_error
        gatherer._texts = pa.array(list(column.cnt_values), pa.large_string())
        gatherer._counts = np.array(list(column.cnt_values.values()), dtype=np.int64)
        return gatherer

    def add(self, values: pa.Array) -> None:
        """Take in values."""
        self.num_values += len(values)
        if pa.types.is_floating(values.type):
            values = texts_of_floats(values)
        if not pa.types.is_dictionary(values.type):
            values = _text_type(values).dictionary_encode()
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
        self._wait(_as_texts(texts), counts)

    def merge(self, other: CategoryGatherer) -> None:
        """Take in what was gathered of other values."""
        other._combine()
        self.num_values += other.num_values
        self.num_null += other.num_null
        self.error += other.error
        self._wait(other._texts, other._counts)
        self._combine()

    def column(self, **known: Any) -> CategoryColumn:
        """All that was gathered; `known` is what all columns have."""
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

    def _wait(self, texts: pa.Array, counts: npt.NDArray[np.int64]) -> None:
        self._waiting.append((texts, counts))
        self._num_waiting += len(texts)
        if self._num_waiting >= max(_ENOUGH, len(self._texts)) or len(self._waiting) >= _ENOUGH:
            self._combine()

    def _combine(self) -> None:
        """Join what waits with what is there, and drop what is too much."""
        if not self._waiting:
            return
        parts = [(self._texts, self._counts), *self._waiting]
        self._waiting, self._num_waiting = [], 0
        encoded = pa.concat_arrays([texts for texts, _ in parts]).dictionary_encode()
        counts = np.zeros(len(encoded.dictionary), dtype=np.int64)
        np.add.at(counts, to_numpy(encoded.indices), np.concatenate([part for _, part in parts]))
        self._texts, self._counts = encoded.dictionary, counts
        self._prune()

    def _prune(self) -> None:
        num_bytes = to_numpy(pc.binary_length(self._texts))
        if len(self._counts) <= self._limit and num_bytes.sum() <= MAX_TEXT_BYTES:
            return
        order = np.argsort(-self._counts, kind="stable")
        kept = min(self._limit, int(np.searchsorted(num_bytes[order].cumsum(), MAX_TEXT_BYTES, side="right")))
        lowered = int(self._counts[order[kept]])
        left = np.flatnonzero(self._counts > lowered)
        self._texts, self._counts = self._texts.take(from_numpy(left)), self._counts[left] - lowered
        self.error += lowered


def texts_of_floats(values: pa.Array) -> pa.Array:
    """Floats as a dictionary of texts, each in the fewest digits that its own type tells apart; NaN is missing, -0.0 is a text."""
    numbers = to_numpy(values.fill_null(float("nan")) if values.null_count else values)
    words = numbers.view(f"u{numbers.itemsize}")  # Arrow takes 0.0 and -0.0 for one value
    found = np.unique(words[~np.isnan(numbers)])
    codes = np.searchsorted(found, words) if len(found) else np.zeros(len(words), dtype=np.int64)
    texts = [str(number) for number in found.view(numbers.dtype)]
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=np.isnan(numbers)), pa.array(texts, pa.large_string()))


def _text_type(values: pa.Array) -> pa.Array:
    """Views have no dictionaries in Arrow."""
    return values.cast(pa.large_string()) if pa.types.is_string_view(values.type) else values


def _as_texts(values: pa.Array) -> pa.Array:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return values.cast(pa.large_string())
    return pa.array([str(value) for value in values.to_pylist()], pa.large_string())

"""The twin of a feed: what a batch must hold, gathered by plain Python, one sample after the other."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from tests.sampling.twins import list_windows

from stoker import Sequences, Store
from stoker.testing import content_of, difference

Array = npt.NDArray[Any]


class Sample(NamedTuple):
    series: int
    start: int
    """Within its series."""
    count: int


def all_samples(view: Any, lengths: Sequence[int]) -> list[Sample]:
    if isinstance(view, Sequences):
        counts = [min(size, view.max_length) for size in lengths]
        starts = [size - count if view.keep == "last" else 0 for size, count in zip(lengths, counts, strict=True)]
        return [Sample(*row) for row in zip(range(len(lengths)), starts, counts, strict=True)]
    firsts = np.cumsum([0, *lengths]).tolist()
    return [Sample(series, start - firsts[series], count) for series, start, count in list_windows(view, lengths)]


def finite_scale(values: Array, method: str) -> tuple[float, float]:
    """Centre and divisor of one series, in float64, over its finite values, added up one by one."""
    finite = [float(value) for value in values if math.isfinite(value)]
    if method == "max":
        largest = max((abs(value) for value in finite), default=0.0)
        return 0.0, largest if largest > 0 else 1.0
    mean = total(finite) / len(finite) if finite else 0.0
    deviation = math.sqrt(total([(value - mean) * (value - mean) for value in finite]) / len(finite)) if finite else 0.0
    return mean, deviation if deviation > 1e-7 * abs(mean) and deviation > 0 else 1.0


def total(values: list[float]) -> float:
    result = 0.0
    for value in values:  # not sum(), which loses less to rounding
        result += value
    return result


def normalized(values: Array, method: str) -> Array:
    """A whole series [steps] or [steps, width], each of its columns by its own scale."""
    kind = values.dtype if values.dtype.itemsize > 2 else np.dtype(np.float64)
    flat = values if values.ndim == 2 else values[:, None]
    out = np.empty(flat.shape, dtype=kind)
    for k in range(flat.shape[1]):
        center, divisor = (kind.type(one) for one in finite_scale(flat[:, k], method))
        out[:, k] = (flat[:, k].astype(kind) - center) / divisor
    return out.reshape(values.shape)


class Twin:
    """All samples of a view of a store, as values of the types that a feed delivers."""

    def __init__(self, store: Store, view: Any, *, columns: Sequence[str], dtype: str | None, normalize: str | None) -> None:
        self.store, self.view, self.columns = store, view, columns
        self.samples = all_samples(view, store.lengths.tolist())
        self.delivered: dict[str, list[Array]] = {}
        for name in columns:
            column = store.schema[name]
            is_float = column.kind == "number" and column.dtype is not None and column.dtype.kind == "f"
            target = np.dtype(dtype) if dtype is not None and is_float else column.dtype
            values = [store[i][name] for i in range(len(store))]
            if normalize is not None and is_float and column.level == "step":
                values = [normalized(one, normalize) for one in values]
            self.delivered[name] = [np.asarray(one).astype(target, copy=False) for one in values]

    def zeros(self, name: str, *shape: int) -> Array:
        width = self.store.schema[name].width
        return np.zeros(shape if width is None else (*shape, width), dtype=self.delivered[name][0].dtype)

    def batch(self, numbers: Sequence[int], rows: int, *, valid: bool, shows_numbers: bool) -> dict[str, torch.Tensor]:
        """The batch of these samples, and of empty rows behind them."""
        samples = [self.samples[number] for number in numbers] + [Sample(-1, 0, 0)] * (rows - len(numbers))
        parts = self._sequences(samples) if isinstance(self.view, Sequences) else self._windows(samples)
        for name in self.columns:
            if self.store.schema[name].level == "series":
                values = self.zeros(name, rows)
                for row, sample in enumerate(samples):
                    if sample.series >= 0:
                        values[row] = self.delivered[name][sample.series]
                parts[name] = values
        if valid:
            parts["valid"] = np.arange(rows) < len(numbers)
        if shows_numbers:
            parts["sample"] = np.array([*numbers, *[-1] * (rows - len(numbers))], dtype=np.int64)
        return {name: self._tensor(name, np.ascontiguousarray(values)) for name, values in parts.items()}

    def _tensor(self, name: str, values: Array) -> torch.Tensor:
        tensor = torch.from_numpy(values)
        column = self.store.schema.get(name.removesuffix("_target"))
        return tensor.view(torch.bfloat16) if column is not None and column.kind == "bfloat16" else tensor

    def _rows(self, name: str, samples: list[Sample], steps: int) -> Array:
        values = self.zeros(name, len(samples), steps)
        for row, (series, start, count) in enumerate(samples):
            if series >= 0:
                values[row, :count] = self.delivered[name][series][start : start + count]
        return values

    @property
    def _step_columns(self) -> list[str]:
        return [name for name in self.columns if self.store.schema[name].level == "step"]

    def _windows(self, samples: list[Sample]) -> dict[str, Array]:
        view = self.view
        span = view.length + max(view.horizon, view.shift)
        start = view.length if view.horizon else view.shift
        has_target = bool(view.horizon or view.shift)
        counts = np.array([sample.count for sample in samples], dtype=np.int32)
        parts: dict[str, Array] = {}
        for name in self._step_columns:
            rows = self._rows(name, samples, span)
            parts[name] = rows[:, : view.length]
            if has_target:
                parts[f"{name}_target"] = rows[:, start:]
        uniform = self.store.uniform_length is not None
        if view.tail == "keep" and (not uniform or any(sample.count < span for sample in self.samples)):
            parts["lengths"] = np.asarray(counts, dtype=np.int32)
            parts["mask"] = np.arange(view.length) < counts[:, None]
            if has_target:
                parts["target_mask"] = np.arange(start, span) < counts[:, None]
        return parts

    def _sequences(self, samples: list[Sample]) -> dict[str, Array]:
        view = self.view
        counts = [sample.count for sample in samples]
        if view.layout == "packed":
            parts = {}
            for name in self._step_columns:
                pieces = [self.delivered[name][one.series][one.start : one.start + one.count] for one in samples if one.series >= 0]
                parts[name] = np.concatenate([self.zeros(name, 0), *pieces])
            parts["cu_seqlens"] = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
            return parts
        longest = max(counts, default=0)
        steps = next((bucket for bucket in view.buckets or () if bucket >= longest), max(longest, 1))
        parts = {name: self._rows(name, samples, steps) for name in self._step_columns}
        parts["lengths"] = np.array(counts, dtype=np.int32)
        if self._step_columns:
            parts["mask"] = np.arange(steps) < parts["lengths"][:, None]
        return parts


def assert_same_batch(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """Equal in names, types, shapes and bits; the order of the names does not count."""
    assert found.keys() == expected.keys()
    differs = difference(content_of(found), content_of({name: expected[name] for name in found}))
    assert differs is None, f"the batch {differs}"

"""The frame: a matrix of features with the names of its columns, and which of its numbers are ready."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.indicators.spec import Spec

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureFrame:
    """Features of bars, one row a bar in the order of the bars."""

    values: Array
    """float32 [bars, features], row-major. NaN where a feature is not ready (with compat="sentio": 0 or worse)."""
    spec: Spec
    offsets: Array
    """Where each series begins in `order`, and the end of the last; int64."""
    order: Array | None = None
    """Row numbers, series by series; None where the rows lie so already."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features."""
        return self.spec.names

    @property
    def first(self) -> Array:
        """The first bar of a series at which each feature is ready, if no value is missing; int64 [features]."""
        return np.array([feature.first for feature in self.spec.features], dtype=np.int64)

    @property
    def emit_from(self) -> int:
        """The first bar of a series at which all features are ready, if no value is missing."""
        return self.spec.emit_from

    @cached_property
    def ready(self) -> Array:
        """Which numbers mean something; bool [bars, features].

        With compat="sentio" a missing value cannot be told from 0, so this knows only where features begin.
        """
        if self.spec.compat is None:
            return np.asarray(np.isfinite(self.values))
        return np.asarray(self.bars_before[:, None] >= np.maximum(self.first, self.emit_from))

    @property
    def bars_before(self) -> Array:
        """How many bars of the same series come before each row; int64 [bars]."""
        before: Array = np.arange(len(self), dtype=np.int64) - np.repeat(self.offsets[:-1], np.diff(self.offsets))
        if self.order is None:
            return before
        rows = np.empty_like(before)
        rows[self.order] = before
        return rows

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __getitem__(self, name: str) -> Array:
        if name not in self.names:
            raise KeyError(f"there is no feature {name!r}; there are {', '.join(self.names[:20])}.")
        column: Array = self.values[:, self.names.index(name)]
        return column

    def __array__(self, dtype: npt.DTypeLike = None, copy: bool | None = None) -> Array:
        return np.array(self.values, dtype=dtype) if copy else np.asarray(self.values, dtype=dtype)

    def __repr__(self) -> str:
        arithmetic = f"compat={self.spec.compat!r}, " if self.spec.compat else ""
        num_series = len(self.offsets) - 1
        return (
            f"<{len(self.names)} features of {len(self):,} bars in {num_series:,} series, {arithmetic}emit_from={self.emit_from}>"
        )

"""`Scaler`: mean and spread of columns, fitted on the steps of a subset in one pass and a fixed amount of memory.

Values are taken some thousand at a time: their mean, then the squares around it, joined with those before by Chan's formula. All in
float64, so neither many values nor a large mean lose digits. Values that are not finite do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import LeakError, OptionError
from stoker.feed.columns import identity_of, lengths_of, list_for, list_stores
from stoker.sampling.subset import Subset, merge_ranges
from stoker.split.split import Split
from stoker.store.store import Store

_ROWS_AT_ONCE = 2**20
_PIECE = 2048


class Moments(NamedTuple):
    """Of each number of a column; `squares` are summed distances from the mean."""

    counts: Array
    means: Array
    squares: Array
    least: Array
    largest: Array
    num_rows: int = 0
    """Steps (or series) that were measured, with those that did not count."""

    @property
    def deviations(self) -> Array:
        """Standard deviations; 1 where there is no spread beyond rounding, as in the scales of a feed."""
        spread = np.sqrt(self.squares / np.maximum(self.counts, 1))
        return np.where((spread > 1e-7 * np.abs(self.means)) & (spread > 0), spread, 1.0)


@kernel
def _add(
    values: Array, starts: Array, stops: Array, counts: Array, means: Array, squares: Array, least: Array, largest: Array
) -> None:
    width = values.shape[1]
    count, mean, square = np.empty(width), np.empty(width), np.empty(width)
    for i in range(len(starts)):
        for first in range(starts[i], stops[i], _PIECE):
            last = min(first + _PIECE, stops[i])
            count[:], mean[:], square[:] = 0.0, 0.0, 0.0
            for t in range(first, last):
                for k in range(width):
                    x = np.float64(values[t, k])
                    if np.isfinite(x):
                        count[k] += 1
                        mean[k] += x
                        least[k] = min(least[k], x)
                        largest[k] = max(largest[k], x)
            for k in range(width):
                mean[k] = mean[k] / count[k] if count[k] else 0.0
            for t in range(first, last):
                for k in range(width):
                    x = np.float64(values[t, k])
                    if np.isfinite(x):
                        square[k] += (x - mean[k]) * (x - mean[k])
            for k in range(width):
                total = counts[k] + count[k]
                if count[k]:
                    apart = mean[k] - means[k]
                    means[k] += apart * count[k] / total
                    squares[k] += square[k] + apart * apart * counts[k] * count[k] / total
                    counts[k] = total


def measure(store: Store, subset: Subset | None, name: str) -> Moments:
    """The moments of a column over the steps (or series) that samples of the subset hold; of all without a subset."""
    column = store.field(name)
    if column.kind != "number" or column.dtype is None:
        raise OptionError(
            f"column {name!r} of {store.name} holds {column.label}, which has no mean. Leave it out of columns=.",
            parameter="columns",
        )
    values = store.mapped(name)
    shape = (column.width or 1,)
    moments = Moments(np.zeros(shape), np.zeros(shape), np.zeros(shape), np.full(shape, np.inf), np.full(shape, -np.inf))
    num_rows = 0
    ranges: Iterable[tuple[Array, Array]] = [(np.array([0]), np.array([len(values)]))]
    if subset is not None:
        subset.check(subset.view, identity_of(store))
        by_series = subset.over(subset.view.over(lengths_of(store, subset.view))).step_ranges()
        ranges = (
            merge_ranges(starts, stops) if column.level == "step" else merge_ranges(series, series + 1)
            for series, starts, stops, _ in by_series
            if len(series)
        )
    for starts, stops in ranges:
        num_rows += int((stops - starts).sum())
        # Some rows at a time, as float16 is converted: compiled kernels cannot calculate with it.
        for row in range(int(starts[0]) if len(starts) else 0, int(stops[-1]) if len(stops) else 0, _ROWS_AT_ONCE):
            end = row + _ROWS_AT_ONCE
            some = slice(np.searchsorted(stops, row, side="right"), np.searchsorted(starts, end, side="left"))
            if some.start < some.stop:
                part = store.rows(name, row, end)
                part = part.astype(np.float32) if part.dtype == np.float16 else part
                part = part.reshape(len(part), *shape)
                _add(part, np.maximum(starts[some], row) - row, np.minimum(stops[some], end) - row, *moments[:-1])
    return moments._replace(num_rows=num_rows)


# Scaler: the first layer of a model, fitted on the steps of the training subset alone; and the weight of rare labels, likewise.
#
# The scaler is part of the model: it is saved and exported with it, so nothing has to be scaled the same way elsewhere. It
# knows which steps it was fitted on, also after it was loaded.

_NOT_FITTED, _ALL_STEPS = -1, 0


class Scaler(nn.Module):
    """(x - mean) / std over the last axis, as the first layer of a model: it is saved and exported with it.

    `Scaler.fit` makes one. `Scaler(num_features)` makes an empty one, to load a state into.

    Args:
        num_features: Size of the last axis. A single feature needs no axis.
        columns: Names of the columns that the features come from, in order.

    Example:
        >>> import numpy as np, stoker, torch
        >>> store = stoker.Store.from_arrays(x=[np.array([1.0, 3.0])])
        >>> scaler = stoker.split.Scaler.fit(store, None, columns=["x"])
        >>> scaler(torch.tensor([1.0, 3.0])).tolist()
        [-1.0, 1.0]
    """

    mean: Tensor
    std: Tensor
    fitted_on: Tensor
    """Which steps, as 63 bits, and how many."""

    def __init__(self, num_features: int, *, columns: Sequence[str] = ()) -> None:
        super().__init__()
        self.columns = tuple(columns)
        self.steps = ""
        self.register_buffer("mean", torch.zeros(num_features))
        self.register_buffer("std", torch.ones(num_features))
        self.register_buffer("fitted_on", torch.tensor([_NOT_FITTED, 0]))

    @classmethod
    def fit(cls, store: Store | Sequence[Store], subset: Subset | Sequence[Subset] | None, *, columns: Sequence[str]) -> Scaler:
        """Fit mean and standard deviation on the steps that samples of a subset hold, each step once.

        Computed in float64 over finite values; a column without spread is divided by 1. Steps that a wide stride leaves out
        between two samples of the subset count too.

        Args:
            store: The store, or a list of stores.
            subset: Usually `split.train`; None takes all steps. For several stores a list with one per store.
            columns: Names of the columns, in the order of the features.

        Raises:
            OptionError: A column is unknown, is not numeric, or has no finite value.
        """
        names = [columns] if isinstance(columns, str) else list(columns)
        if not names:
            raise OptionError(
                "columns is empty; expected the names of the columns to scale, in the order of the features.", parameter="columns"
            )
        stores = list_stores(store)
        subsets: list[Subset | None] = list_for(stores, "subset", subset)
        for part in subsets:
            if part is not None:
                Subset.check_kind(part)
        fitted = [_joined([measure(*pair, name) for pair in zip(stores, subsets, strict=True)]) for name in names]
        empty = [name for name, moments in zip(names, fitted, strict=True) if not moments.counts.all()]
        if empty:
            where = " + ".join(store.name for store in stores)
            raise OptionError(
                f"column {empty[0]!r} of {where} has no finite value in these steps, so it has no mean.", column=empty[0]
            )
        scaler = cls(sum(len(moments.means) for moments in fitted), columns=names)
        num_steps = max(moments.num_rows for moments in fitted)
        scaler.mean.copy_(torch.from_numpy(np.concatenate([moments.means for moments in fitted])))
        scaler.std.copy_(torch.from_numpy(np.concatenate([moments.deviations for moments in fitted])))
        scaler.fitted_on.copy_(torch.tensor([_number_of(subsets), num_steps]))
        # Checkpoints compare this string, so it keeps its wording.
        scaler.steps = " + ".join(
            f"all steps of {fed.name}" if part is None else f"the {part.name} part of {part.origin}"
            for fed, part in zip(stores, subsets, strict=True)
        )
        return scaler

    def forward(self, x: Tensor) -> Tensor:
        """Scaled, in the wider of the types of `x` and float32."""
        self._check_features(x)
        return (x - self.mean) / self.std

    def inverse(self, x: Tensor) -> Tensor:
        """From scaled values back to those of the store."""
        self._check_features(x)
        return x * self.std + self.mean

    def check(self, split: Split) -> None:
        """Raise LeakError unless it was fitted on exactly the steps of the training subset of this split."""
        number, num_steps = self.fitted_on.tolist()
        if number == _NOT_FITTED:
            raise OptionError(
                "the scaler was not fitted. Use Scaler.fit(store, split.train, columns=…), or load its state.", parameter="columns"
            )
        if number == _number(split.train):
            return
        subset = next((name for name, subset in split.subsets.items() if _number(subset) == number), None)
        where = (
            "all steps of a store" if number == _ALL_STEPS else f"the {subset} subset" if subset else "another subset than these"
        )
        raise LeakError(
            f"the scaler was fitted on {where} ({num_steps:,} steps), so it leaks steps that the model is evaluated on. "
            f"Fit it on the training subset: Scaler.fit(store, split.train, columns=…)."
        )

    def extra_repr(self) -> str:
        """What is scaled, and by what."""
        names = f"{', '.join(self.columns)}; " if self.columns else ""
        number, num_steps = self.fitted_on.tolist()
        steps = f"fitted on {num_steps:,} steps" if number != _NOT_FITTED else "not fitted"
        return f"{names}{len(self.mean)} features, {steps}{f' of {self.steps}' if self.steps else ''}"

    def _check_features(self, x: Tensor) -> None:
        if len(self.mean) > 1 and (x.dim() == 0 or x.shape[-1] != len(self.mean)):
            raise OptionError(
                f"the scaler has {len(self.mean)} features, but x has the shape {list(x.shape)}; expected them along the last axis.",
                parameter="scaler",
            )


def pos_weight(store: Store, subset: Subset | None, column: str) -> Tensor:
    """Negative labels per positive one, in the steps (or series) of a subset, for `BCEWithLogitsLoss(pos_weight=…)`.

    Args:
        store: The store.
        subset: Usually `split.train`; None takes all steps.
        column: A column of labels 0 and 1; NaN does not count.

    Raises:
        OptionError: The column has other values, or only one of the two.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(y=[np.array([0.0, 0.0, 0.0, 1.0])])
        >>> stoker.split.pos_weight(store, None, "y")
        tensor(3.)
    """
    labels = measure(store, subset, column)
    if len(labels.means) > 1:
        raise OptionError(
            f"column {column!r} of {store.name} has {len(labels.means)} numbers per step; expected one label.", column=column
        )
    share, count = float(labels.means[0]), float(labels.counts[0])
    # The variance of zeros and ones is p (1 - p), and that of anything else between them is less.
    is_binary = (
        labels.least[0] >= 0 and labels.largest[0] <= 1 and abs(labels.squares[0] / max(count, 1) - share * (1 - share)) < 1e-9
    )
    if not count or not is_binary:
        raise OptionError(
            f"column {column!r} of {store.name} holds other values than labels 0 and 1 in these steps.", column=column
        )
    if not 0 < share < 1:
        raise OptionError(
            f"all {int(count):,} labels of column {column!r} are {share:.0f} in these steps, so there is nothing to weigh.",
            column=column,
        )
    return torch.tensor((1 - share) / share, dtype=torch.float32)


def _joined(parts: Sequence[Moments]) -> Moments:
    """Moments of several stores as those of one (Chan's formula)."""
    whole = parts[0]
    for part in parts[1:]:
        counts = whole.counts + part.counts
        share = part.counts / np.maximum(counts, 1)
        apart = part.means - whole.means
        whole = Moments(
            counts,
            whole.means + apart * share,
            whole.squares + part.squares + apart * apart * whole.counts * share,
            np.minimum(whole.least, part.least),
            np.maximum(whole.largest, part.largest),
            whole.num_rows + part.num_rows,
        )
    return whole


def _number_of(subsets: Sequence[Subset | None]) -> int:
    """What `fitted_on` holds for these steps."""
    numbers = [_ALL_STEPS if subset is None else _number(subset) for subset in subsets]
    if len(numbers) == 1 or not any(numbers):
        return numbers[0]
    return int(xxhash.xxh3_64_intdigest(repr(numbers).encode())) >> 1 or 1


def _number(subset: Subset) -> int:
    """The fingerprint as a positive number that a tensor can hold."""
    return int(subset.fingerprint, 16) >> 1 or 1

"""Per-series scaling: each series by statistics of its own training steps, so that nothing of the other subsets leaks into it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast, get_args

import numpy as np
import torch
import xxhash

from stoker import _disk
from stoker._kernels import kernel
from stoker._types import Array, converted
from stoker.errors import LeakError, OptionError, SourceInvalidError, SourceNotFoundError
from stoker.feed.columns import identity_of, lengths_of
from stoker.feed.scaling import Scales
from stoker.sampling.subset import StepRanges, Subset
from stoker.split.split import Split
from stoker.store.shards import Texts
from stoker.store.store import Store

ScalerMethod = Literal["standard", "robust", "minmax", "meanabs"]
Unseen = Literal["error", "global"]
METHODS: tuple[ScalerMethod, ...] = get_args(ScalerMethod)
_SHOWN = 3
Values = TypeVar("Values", bound=Array | torch.Tensor)


class SeriesScaler:
    """(x - center) / divisor, with a center and a divisor for each series, fitted on its training steps; for `Feed(normalize=…)`.

        standard    mean                 standard deviation
        robust      median               distance between the 25 % and the 75 % quantile
        minmax      smallest value       largest minus smallest value
        meanabs     0                    mean of absolute values

    A divisor without spread beyond rounding is 1. Values that are not finite do not count. `SeriesScaler.fit` makes one.

    Args:
        method: How it was fitted.
        scales: Centers and divisors per column, one row per series.
        fitted_on: The fingerprint of the subset that it was fitted on, or "all".
        data: The identity of the store.
        keys: The key of each series; None where the store has none.

    Example:
        >>> import numpy as np, stoker
        >>> store = stoker.Store.from_arrays(x=[np.array([1.0, 3.0]), np.array([10.0, 30.0])])
        >>> scaler = stoker.split.SeriesScaler.fit(store, None, columns=["x"])
        >>> scaler.transform(store[1]["x"], [1], "x").tolist()
        [-1.0, 1.0]
    """

    def __init__(
        self,
        method: ScalerMethod,
        scales: Mapping[str, Scales],
        *,
        fitted_on: str,
        data: str,
        keys: Texts | Array | None = None,
    ) -> None:
        self.method = method
        self._scales = dict(scales)
        self.fitted_on = fitted_on
        self.data = data
        self.keys = keys

    @classmethod
    def fit(
        cls,
        store: Store,
        subset: Subset | None,
        *,
        columns: Sequence[str],
        method: ScalerMethod = "standard",
        unseen: Unseen = "error",
    ) -> SeriesScaler:
        """Fit centers and divisors on the steps that samples of a subset hold, each step once.

        Args:
            store: The store.
            subset: Usually `split.train`; None takes all steps.
            columns: Names of columns of numbers, one value (or vector) per step.
            method: "standard", "robust", "minmax" or "meanabs".
            unseen: Series without a finite training value are an "error", or "global" gives them the mean of the others' centers
                and divisors.

        Returns:
            The scaler.

        Raises:
            OptionError: A column does not hold numbers per step, an option is invalid, or a series has no training value.
        """
        method, unseen = converted("method", method, ScalerMethod), converted("unseen", unseen, Unseen)
        names = [columns] if isinstance(columns, str) else list(columns)
        if not names:
            raise OptionError("columns is empty; expected the names of the columns to scale.", parameter="columns")
        ranges = _training_ranges(store, subset)
        scales = {name: _fit_column(store, name, ranges, method, unseen) for name in names}
        fitted_on = "all" if subset is None else subset.fingerprint
        return cls(method, scales, fitted_on=fitted_on, data=identity_of(store), keys=_keys_of(store))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scaled columns."""
        return tuple(self._scales)

    def scales(self, column: str) -> Scales:
        """Centers and divisors of a column, one row per series."""
        if column not in self._scales:
            raise OptionError(f"the scaler has no column {column!r}; it has {', '.join(self._scales)}.", parameter="scaler")
        return self._scales[column]

    def transform(self, values: Values, series: Sequence[int] | Array | torch.Tensor, column: str) -> Values:
        """Scale values of `column`, `[len(series), …]` or the steps of one series. Integers become float64, as in NumPy."""
        if isinstance(values, torch.Tensor) and not values.is_floating_point():
            values = cast(Values, values.double())  # else the scales would become integers
        center, divisor = self._rows(values, series, column)
        return cast(Values, (values - center) / divisor)

    def inverse(self, values: Values, series: Sequence[int] | Array | torch.Tensor, column: str) -> Values:
        """From scaled values back to those of the store: the inverse of `transform`."""
        center, divisor = self._rows(values, series, column)
        return cast(Values, values * divisor + center)

    def _rows(self, values: Any, series: Any, column: str) -> tuple[Any, Any]:
        """The center and the divisor of each value, in the shape and type of the values."""
        chosen = np.asarray(series.cpu() if isinstance(series, torch.Tensor) else series)
        scales = []
        for rows in self.scales(column)[:2]:
            rows = rows[chosen]
            is_wide = rows.shape[1] > 1 and values.ndim > 1
            middle = values.ndim - 1 - is_wide
            rows = rows.reshape(len(chosen), *(1,) * middle, *((rows.shape[1],) if is_wide else ()))
            rows = rows.reshape(rows.shape[1:]) if len(chosen) == 1 and values.ndim == 1 else rows
            scales.append(torch.from_numpy(rows).to(values) if isinstance(values, torch.Tensor) else rows)
        return scales[0], scales[1]

    def for_store(self, store: Store, *, unseen: Unseen = "error") -> SeriesScaler:
        """The scaler for another store with these columns, such as one with later steps. Series are found by their keys.

        Args:
            store: The other store. Without keys it must have as many series, which are then known by their number.
            unseen: Series that the scaler does not know are an "error", or "global" gives them the mean of the others' centers
                and divisors.

        Raises:
            OptionError: A series is not known, or an option is invalid.

        Example:
            >>> import numpy as np, stoker
            >>> store = stoker.Store.from_arrays(x=[np.array([1.0, 3.0])])
            >>> scaler = stoker.split.SeriesScaler.fit(store, None, columns=["x"])
            >>> later = stoker.Store.from_arrays(x=[np.array([5.0, 7.0, 9.0])])
            >>> feed = stoker.Feed(later, stoker.Windows(3), batch_size=1, normalize=scaler.for_store(later))
            >>> next(iter(feed))["x"].tolist()
            [[3.0, 5.0, 7.0]]
        """
        unseen = converted("unseen", unseen, Unseen)
        if self.data == identity_of(store):
            return self
        num_known, keys = len(next(iter(self._scales.values())).centers), _keys_of(store)
        if (self.keys is None) != (keys is None) or (keys is None and len(store) != num_known):
            raise OptionError(
                f"the scaler has {num_known:,} series {'without' if self.keys is None else 'with'} keys, but {store.name} has "
                f"{len(store):,} {'without' if keys is None else 'with'}. Pack it with the same series=, or fit another scaler.",
                parameter="series",
            )
        places, listed = np.arange(len(store)), [] if keys is None else _listed(keys)
        if self.keys is not None:
            rows_by_key = {key: row for row, key in enumerate(_listed(self.keys))}
            places = np.array([rows_by_key.get(key, -1) for key in listed], dtype=np.int64)
        missing = np.flatnonzero(places < 0)
        if len(missing) and unseen == "error":
            shown = ", ".join(repr(listed[number]) for number in missing[:_SHOWN].tolist())
            shown += ", …" if len(missing) > _SHOWN else ""
            raise OptionError(
                f"{len(missing):,} of {len(store):,} series of {store.name} were not in the training data ({shown}). "
                "Leave them out, or give unseen='global'.",
                parameter="unseen",
            )
        is_known = places[:, None] >= 0
        scales = {
            name: Scales(*(np.where(is_known, rows[places], rows.mean(axis=0)).astype(rows.dtype) for rows in pair))
            for name, pair in self._scales.items()
        }
        return SeriesScaler(self.method, scales, fitted_on=self.fitted_on, data=identity_of(store), keys=keys)

    def check(self, split: Split) -> None:
        """Raise LeakError unless it was fitted on exactly the training subset of this split."""
        if self.fitted_on != split.train.fingerprint:
            where = "all steps" if self.fitted_on == "all" else "another subset"
            raise LeakError(
                f"the scaler was fitted on {where}, so it leaks steps that the model is evaluated on. "
                "Fit it on the training subset: SeriesScaler.fit(store, split.train, columns=…)."
            )

    def state_dict(self) -> dict[str, Any]:
        """What `SeriesScaler.load` takes: strings, and tensors of centers and divisors."""
        tensors = {
            f"{kind}.{name}": torch.from_numpy(np.ascontiguousarray(rows))
            for name, scales in self._scales.items()
            for kind, rows in (("center", scales.centers), ("divisor", scales.divisors))
        }
        if isinstance(self.keys, Texts):
            tensors |= {"keys.utf8": torch.tensor(self.keys.utf8), "keys.offsets": torch.tensor(self.keys.offsets)}
        elif self.keys is not None:
            tensors["keys"] = torch.tensor(self.keys)
        return {"method": self.method, "fitted_on": self.fitted_on, "data": self.data, "columns": list(self._scales), **tensors}

    @classmethod
    def load(cls, state: Mapping[str, Any]) -> SeriesScaler:
        """A scaler from `state_dict`."""
        try:
            scales = {name: Scales(state[f"center.{name}"].numpy(), state[f"divisor.{name}"].numpy()) for name in state["columns"]}
            keys: Texts | Array | None = state["keys"].numpy() if "keys" in state else None
            if "keys.utf8" in state:
                keys = Texts(state["keys.utf8"].numpy(), state["keys.offsets"].numpy())
            return cls(state["method"], scales, fitted_on=state["fitted_on"], data=state["data"], keys=keys)
        except (KeyError, AttributeError, TypeError):
            raise OptionError(
                "the state is not that of a SeriesScaler; expected what its state_dict() returned.", parameter="state"
            ) from None

    def describe(self) -> dict[str, Any]:
        """How it was fitted and a hash of its numbers, which a resumed run compares."""
        digest = xxhash.xxh3_64()
        for name, (centers, divisors) in sorted(self._scales.items()):
            digest.update(f"{name} {centers.dtype} {centers.shape}".encode() + centers.tobytes() + divisors.tobytes())
        columns = ", ".join(self._scales)
        return {"method": self.method, "columns": columns, "fitted_on": self.fitted_on, "scales": digest.hexdigest()}

    def to_bytes(self) -> bytes:
        """The content of a safetensors file with its state: what a run keeps as `scaler.safetensors`."""
        from safetensors.torch import save

        state = self.state_dict()
        tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
        facts = {name: value for name, value in state.items() if name not in tensors}
        return save(tensors, metadata={**facts, "columns": json.dumps(facts["columns"])})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which `SeriesScaler.open` reads."""
        _disk.write_file(Path(path), self.to_bytes())

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> SeriesScaler:
        """A scaler from a file that `save`, or a training run (`scaler.safetensors`), wrote.

        Raises:
            SourceNotFoundError: There is no file.
            SourceInvalidError: The file is not that of a scaler.
        """
        from safetensors import SafetensorError, safe_open

        if not Path(path).is_file():
            raise SourceNotFoundError(f"{path} does not exist; expected the scaler.safetensors of a run.")
        try:
            with safe_open(str(path), framework="pt") as opened:
                facts = dict(opened.metadata() or {})
                columns = json.loads(facts["columns"])
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
            scaler = cls.load({**facts, "columns": columns, **tensors})
            scaler._check_shapes()
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise SourceInvalidError(f"{path} is not the file of a scaler: {reason}") from None
        return scaler

    def _check_shapes(self) -> None:
        """Refuse a state whose numbers do not fit together."""
        sizes = {len(self.keys)} if self.keys is not None else set()
        for name, (centers, divisors) in self._scales.items():
            sizes.add(len(centers))
            if centers.ndim != 2 or centers.shape != divisors.shape or {centers.dtype.kind, divisors.dtype.kind} != {"f"}:
                raise ValueError(f"the centers and divisors of {name!r} have other shapes or types than they should.")
        if self.method not in METHODS or len(sizes) != 1 or not isinstance(self.fitted_on, str) or not isinstance(self.data, str):
            raise ValueError("its numbers do not fit together.")

    def __repr__(self) -> str:
        num_series = len(next(iter(self._scales.values())).centers)
        return f"SeriesScaler({self.method!r}, columns={list(self._scales)}, {num_series:,} series)"


def _keys_of(store: Store) -> Texts | Array | None:
    """The key of each series."""
    if store.key is None:
        return None
    texts = store.schema[store.key].texts
    return texts if texts is not None else store.column(store.key)


def _listed(keys: Texts | Array) -> list[Any]:
    return list(keys) if isinstance(keys, Texts) else keys.tolist()


def _training_ranges(store: Store, subset: Subset | None) -> list[StepRanges]:
    lengths = lengths_of(store)
    if subset is None:
        bounds = lengths.bounds()
        return [StepRanges(np.arange(len(store)), bounds[:-1], bounds[1:], np.zeros(0, dtype=np.int64))]
    Subset.check_kind(subset)
    subset.check(subset.view, identity_of(store))
    return list(subset.over(subset.view.over(lengths_of(store, subset.view))).step_ranges())


def _fit_column(store: Store, name: str, ranges: list[StepRanges], method: ScalerMethod, unseen: str) -> Scales:
    column = store.field(name)
    if column.kind != "number" or column.level != "step" or column.dtype is None:
        raise OptionError(
            f"column {name!r} of {store.name} holds {column.label} per {column.level}; expected numbers per step.", column=name
        )
    shape = (len(store), column.width or 1)
    centers, divisors, counts = np.zeros(shape), np.ones(shape), np.zeros(shape, dtype=np.int64)
    largest = max((int(store.lengths.max()) if len(store) else 0), 1)
    for series, starts, stops, _ in ranges:
        # Compiled kernels cannot calculate with float16.
        begin, end = (int(starts.min()), int(stops.max())) if len(starts) else (0, 0)
        part = store.rows(name, begin, end).reshape(end - begin, shape[1])
        part = part.astype(np.float32) if part.dtype == np.float16 else part
        _fit(part, series, starts - begin, stops - begin, METHODS.index(method), np.empty(largest), centers, divisors, counts)
    missing = np.flatnonzero((counts == 0).any(axis=1))
    if len(missing) and (unseen == "error" or len(missing) == len(store)):
        shown = ", ".join(f"{number:,}" for number in missing[:_SHOWN].tolist()) + (", …" if len(missing) > _SHOWN else "")
        raise OptionError(
            f"column {name!r} of {store.name} has no finite training value in {len(missing):,} of {len(store):,} series ({shown}). "
            "Leave them out of the split, or give unseen='global'.",
            parameter="unseen",
        )
    if len(missing):
        seen = (counts > 0).all(axis=1)
        centers[missing], divisors[missing] = centers[seen].mean(axis=0), divisors[seen].mean(axis=0)
    kind = np.dtype(np.float32) if column.dtype == np.float32 else np.dtype(np.float64)
    return Scales(centers.astype(kind), divisors.astype(kind))


@kernel
def _fit(
    values: Array,
    series: Array,
    starts: Array,
    stops: Array,
    method: int,
    buffer: Array,
    centers: Array,
    divisors: Array,
    counts: Array,
) -> None:
    """Statistics of each series over its ranges, which rise and may overlap; `buffer` holds the finite values of a series."""
    i = 0
    while i < len(series):
        number, last = series[i], i
        while last < len(series) and series[last] == number:
            last += 1
        for k in range(values.shape[1]):
            num, done = 0, 0
            for r in range(i, last):
                for t in range(max(starts[r], done), stops[r]):
                    x = np.float64(values[t, k])
                    if np.isfinite(x):
                        buffer[num] = x
                        num += 1
                done = max(done, stops[r])
            counts[number, k] = num
            if num:
                center, divisor, size = _statistics(buffer[:num], method)
                centers[number, k] = center
                divisors[number, k] = divisor if divisor > 1e-7 * size and divisor > 0 else 1.0
        i = last


@kernel
def _statistics(x: Array, method: int) -> tuple[Any, Any, Any]:
    """Center, divisor, and the size of the values that decides what spread is more than rounding."""
    if method == 1:
        x.sort()
        middle = _quantile(x, 0.5)
        return middle, _quantile(x, 0.75) - _quantile(x, 0.25), abs(middle)
    least, largest, total, absolute = x[0], x[0], 0.0, 0.0
    for value in x:
        least, largest = min(least, value), max(largest, value)
        total += value
        absolute += abs(value)
    if method == 2:
        return least, largest - least, max(abs(least), abs(largest))
    if method == 3:
        return 0.0, absolute / len(x), 0.0
    mean, squares = total / len(x), 0.0
    for value in x:
        squares += (value - mean) * (value - mean)
    return mean, np.sqrt(squares / len(x)), abs(mean)


@kernel
def _quantile(x: Array, share: float) -> Any:
    """Of sorted values, interpolated between the two nearest, as NumPy does by default."""
    place = share * (len(x) - 1)
    low = int(np.floor(place))
    high = min(low + 1, len(x) - 1)
    return x[low] + (x[high] - x[low]) * (place - low)

"""Columns that are fed: which columns of a store, and as which type."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
import torch
import xxhash

from stoker._text import readable_bytes
from stoker._types import Array
from stoker.errors import FeedError, OptionError
from stoker.feed.residency import available_host_bytes
from stoker.feed.scaling import Method, Scales, SeriesScales, series_scales
from stoker.sampling.gaps import find_runs
from stoker.sampling.views import AnyView, Lengths, Samples, Sequences
from stoker.store.manifest import NANOSECONDS, parse_frequency
from stoker.store.shards import Level
from stoker.store.store import Store

FLOATS = ("float16", "float32", "float64")
SHOWN = 4
"""Samples, or texts, that a message names."""


@dataclass(frozen=True)
class FedColumn:
    """One column as it goes into batches."""

    name: str
    level: Level
    values: Array
    """Flat and read-only, as the store has it."""
    _: KW_ONLY
    dtype: np.dtype[Any]
    """Of what is delivered."""
    torch_name: str
    width: int | None
    lengths: Lengths
    """Where the series of the store lie."""
    scales: Scales | None = None
    scaled_by: str = "normalize"
    """The option that gave the scales, for messages."""
    observed: bool = False
    """Whether missing values (NaN) become 0, with a mask of those that are there."""
    shift: int = 0
    """What is added to codes of categories, so that 0 means a missing one."""

    @property
    def pieces(self) -> tuple[FedColumn, ...]:
        """The column in each store of the feed."""
        return (self,)

    @property
    def num_rows(self) -> int:
        """Steps (or series), of all stores."""
        return sum(len(piece.values) for piece in self.pieces)

    @property
    def unit(self) -> int:
        """Bytes of one step (or series) as delivered."""
        return self.dtype.itemsize * (self.width or 1)

    @property
    def may_miss(self) -> bool:
        """Whether it can hold NaN."""
        return self.values.dtype.kind == "f" or self.torch_name == "bfloat16"

    @property
    def is_copied(self) -> bool:
        """Whether bytes are delivered as they are stored."""
        return self.scales is None and self.dtype == self.values.dtype

    @property
    def may_overflow(self) -> bool:
        """Whether a finite value can become infinite on its way into a batch."""
        narrows = self.values.dtype.kind == "f" and self.dtype.itemsize < self.values.dtype.itemsize
        return not self.is_copied and (narrows or self.scales is not None)

    def delivered(self, start: int, stop: int, series: int) -> Array:
        """Values `start` to `stop`, of one series, as they are delivered, [rows, width], by NumPy."""
        rows = self.values.reshape(-1)[start:stop].reshape(-1, self.width or 1)
        with np.errstate(all="ignore"):  # kernels and devices do not warn either
            if self.scales is not None:
                rows = (rows - self.scales.centers[series]) / self.scales.divisors[series]
            return rows.astype(self.dtype)

    def refuse_overflow(self, series: Array, starts: Array, counts: Array) -> None:
        """Raise for the first finite value that is delivered as an infinite one, if there is one.

        Args:
            series: The series of each span.
            starts: The place of its first value.
            counts: Its rows.
        """
        width = self.width or 1
        for number, start, count in zip(series.tolist(), starts.tolist(), counts.tolist(), strict=True):
            stop = start + count * width
            rows = self.values.reshape(-1)[start:stop].reshape(count, width)
            bad = np.isinf(self.delivered(start, stop, number)) & np.isfinite(rows)
            if bad.any():
                raise self.overflow(number, start // width + int(bad.any(axis=1).argmax()))

    def overflow(self, series: int, row: int) -> FeedError:
        """The error for a row with a value that cannot be delivered."""
        values = self.values[row].reshape(-1)
        value = values[np.abs(np.where(np.isfinite(values), values, 0)).argmax()]
        where = f"series {series:,}"
        if self.level == "step":
            where = f"step {row - int(self.lengths.bounds(series, series + 1)[0]):,} of {where}"
        what = f"column {self.name!r} of {self.lengths.name} is {value!s} at {where}"
        limit = f"the largest {self.dtype.name} is {float(np.finfo(self.dtype).max):.8g}"
        if self.scales is not None:
            by = self.scaled_by
            return FeedError(f"{what}, and {by} makes it infinite: {limit}. Leave {by} out, or pack smaller values.")
        return FeedError(f"{what}, but {limit}. Give dtype={self.values.dtype.name!r}, or pack smaller values.")

    @property
    def torch_dtype(self) -> torch.dtype:
        """Of the tensor."""
        dtype: torch.dtype = getattr(torch, self.torch_name)
        return dtype


def lengths_of(store: Store, view: AnyView | None = None) -> Lengths:
    """Where the series of a store lie, and where a view cuts them at gaps. That reads the time column once."""
    lengths = Lengths(
        num_series=len(store),
        num_steps=store.num_steps,
        length=store.uniform_length,
        offsets=store.offsets if store.uniform_length is None else np.zeros(0, dtype=np.int64),
        name=store.name,
    )
    max_gap = None if view is None else _max_gap(store, view)
    if max_gap is None:
        return lengths
    times = store.column(store.time or "")
    runs = find_runs(times.astype(np.int64) if times.dtype.kind == "u" else times, lengths.bounds(), max_gap)
    return replace(lengths, runs=runs) if runs.num_gaps else lengths


def _max_gap(store: Store, view: AnyView) -> int | None:
    """The largest difference of two consecutive times that a sample may span, in the unit of the time column."""
    if isinstance(view, Sequences) or (view.max_gap is None and view.gaps is None):
        return None
    asked = f"max_gap={view.max_gap!r}" if view.max_gap is not None else f"gaps={view.gaps!r}"
    if store.time is None:
        raise OptionError(f"{asked} needs times, but {store.name} has no time column. Pack it with time='…'.", parameter="time")
    limit: int | str | None = view.max_gap if view.max_gap is not None else getattr(store.manifest, "freq", None)
    if limit is None:
        raise OptionError(
            f"{asked} needs a frequency, but {store.name} was packed without one. Pack it with freq=, or give max_gap=.",
            parameter="freq",
        )
    column = store.schema[store.time]
    if isinstance(limit, str) and column.kind != "timestamp":
        raise OptionError(
            f"{asked} is a duration, but the time column {column.name!r} of {store.name} holds {column.label}. Give an integer.",
            column=column.name,
        )
    if not isinstance(limit, str):
        return int(limit)
    frequency = parse_frequency(limit, "max_gap" if view.max_gap is not None else "freq")
    # A month has 31 days at most, so a step of months is never a gap and a missing month always is one.
    unit = {"s": 10**9, "ms": 10**6, "us": 10**3}.get((column.unit or "ns").split(",")[0], 1)
    return (frequency.nanoseconds or frequency.months * 31 * NANOSECONDS["d"]) // unit


def list_stores(given: Store | Sequence[Store]) -> tuple[Store, ...]:
    """The store or stores that a feed was given; what they are is checked where they are read."""
    if isinstance(given, Store) or not isinstance(given, list | tuple):
        return (given,)  # type: ignore[return-value]
    if not given:
        raise OptionError("store is an empty list; expected a store, or a list of stores.", parameter="store")
    return tuple(given)


def list_for(stores: tuple[Store, ...], name: str, given: Any) -> list[Any]:
    """An option with one value per store, or None for all of them."""
    if given is None:
        return [None] * len(stores)
    values = list(given) if isinstance(given, list | tuple) else [given]
    if len(values) != len(stores):
        raise OptionError(
            f"{name} has {len(values)} values for {len(stores)} stores; expected a list with one per store.", parameter=name
        )
    return values


def samples_over(store: Store, view: AnyView) -> tuple[Lengths, Samples]:
    """Where the series of a store lie, and the samples of a view over them; refuses what is not a store, a view, or has no sample."""
    if not isinstance(store, Store):
        raise OptionError.expected("store", store, "what stoker.open(…), pack(…) or Store.from_arrays(…) returns")
    if not isinstance(view, AnyView):
        raise OptionError.expected("view", view, "Windows(…), Segments(…) or Sequences(…)")
    lengths = lengths_of(store, view)
    samples: Samples = view.over(lengths)
    if not samples.num_samples:
        raise OptionError(
            f"{store.name} has no sample of {view}: {' '.join(samples.notes()) or 'it has no series.'}", parameter="view"
        )
    return lengths, samples


def identity_of(store: Store) -> str:
    """What must be the same for the number of a sample to mean the same: its digest; in memory, its shape is all there is."""
    return store.digest or f"{len(store)} series of {store.num_steps} steps in memory"


def content_digest(store: Store, names: Sequence[str]) -> str:
    """A hash of every value of some columns, and of where series begin; for stores in memory, which have no digest."""
    digest = xxhash.xxh3_128()
    for array in (store.offsets, *(store.column(name) for name in names)):
        digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def first_non_finite(columns: list[FedColumn], row: tuple[int, int, int, int]) -> tuple[str, int, float] | None:
    """The column, step and value of the first NaN or infinity of a sample (number, series, first step, steps); None without one."""
    _, series, start, count = row
    for column in columns:
        if not np.issubdtype(column.values.dtype, np.floating):
            continue
        begin, end = (start, start + count) if column.level == "step" else (series, series + 1)
        values = column.values[begin:end]
        bad = np.flatnonzero(~np.isfinite(values).reshape(len(values), -1).all(1))
        if len(bad):
            value = values[bad[0]].reshape(-1)
            return column.name, int(begin + bad[0]) if column.level == "step" else start, float(value[~np.isfinite(value)][0])
    return None


def choose_columns(
    store: Store,
    names: Sequence[str] | None,
    *,
    dtype: str | None,
    normalize: Method | None,
    lengths: Lengths,
    scaler: SeriesScales | None = None,
) -> list[FedColumn]:
    """The columns that were asked for, or all that hold numbers."""
    if dtype is not None and dtype not in FLOATS:
        raise OptionError.expected("dtype", dtype, f"one of {', '.join(FLOATS)}: the type that columns of floats become")
    if normalize is not None and normalize not in ("zero", "max"):
        raise OptionError.expected("normalize", normalize, "'zero', 'max' or None")
    if isinstance(names, str):
        names = [names]
    wanted = [name for name, column in store.schema.items() if column.dtype is not None] if names is None else list(names)
    if not wanted:
        raise OptionError(f"{store.name} has no column of numbers to feed.", parameter="columns")
    if scaler is not None and not set(scaler.columns) & set(wanted):
        raise OptionError(
            f"the scaler has the columns {', '.join(scaler.columns)}, but the feed has {', '.join(wanted)}: it would scale nothing.",
            parameter="scaler",
        )
    return [_fed(store, name, dtype=dtype, normalize=normalize, lengths=lengths, scaler=scaler) for name in wanted]


def _fed(
    store: Store,
    name: str,
    *,
    dtype: str | None,
    normalize: Method | None,
    lengths: Lengths,
    scaler: SeriesScales | None,
) -> FedColumn:
    column = store.field(name)
    if column.dtype is None:
        raise OptionError(
            f"column {name!r} of {store.name} holds {column.label}, which cannot be a tensor. Leave it out of columns=.",
            parameter="columns",
        )
    values = store.mapped(name)
    stored = values.dtype
    is_number = column.kind == "number" and stored.kind in "iuf"
    fitted = scaler.scales(name) if scaler is not None and name in scaler.columns else None
    scaled = normalize is not None and column.level == "step" and is_number and stored.kind == "f"
    if fitted is not None:
        expected = (len(store), column.width or 1)
        if not is_number or column.level != "step" or fitted.centers.shape != expected or fitted.divisors.shape != expected:
            raise OptionError(
                f"the scaler has {' x '.join(map(str, fitted.centers.shape))} centers for column {name!r}, which holds {column.label} "
                f"per {column.level}; expected numbers per step, and {expected[0]} x {expected[1]} centers. Fit it on this store.",
                parameter="scaler",
            )
        scaled = True
    target = stored
    if dtype is not None and is_number and (stored.kind == "f" or scaled):
        target = np.dtype(dtype)
    elif scaled and stored.kind != "f":
        target = np.dtype(np.float32)
    scales, scaled_by = fitted, "normalize" if fitted is None else "scaler"
    if scaled and normalize:
        scales = series_scales(store.column(name), lengths, normalize)
    if scales is not None:  # an infinite mean or deviation would make zeros or NaN of a series
        bad = ~(np.isfinite(scales.centers) & np.isfinite(scales.divisors)).all(axis=1)
        kind = scales.centers.dtype
        if bad.any():
            raise FeedError(
                f"column {name!r} of {store.name} has values in series {int(bad.argmax()):,} whose mean or deviation is beyond the "
                f"largest {kind.name}, {float(np.finfo(kind).max):.8g}. Leave {scaled_by} out, or pack smaller values."
            )
    torch_name = "bfloat16" if column.kind == "bfloat16" else target.name
    return FedColumn(
        name,
        column.level,
        values,
        dtype=target,
        torch_name=torch_name,
        width=column.width,
        lengths=lengths,
        scales=scales,
        scaled_by=scaled_by,
    )


def mark_observed(columns: list[FedColumn], observed: bool | str | Sequence[str]) -> list[FedColumn]:
    """The columns, with masks for those that are named; True names all columns of floats per step."""
    names = [observed] if isinstance(observed, str) else observed
    if isinstance(names, bool):
        names = [column.name for column in columns if column.may_miss and column.level == "step"] if names else []
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise OptionError.expected("observed", observed, "True, False or names of columns")
    by_name = {column.name: column for column in columns}
    for name in names:
        if name not in by_name:
            raise OptionError(
                f"observed names {name!r}, which is not fed; the feed has {', '.join(by_name)}.", parameter="observed"
            )
        if not by_name[name].may_miss:
            raise OptionError(
                f"observed names {name!r}, which holds {by_name[name].values.dtype} and so no NaN. Name columns of floats, or give True.",
                parameter="observed",
            )
    return [replace(column, observed=column.name in names) for column in columns]


def check_columns(stores: Sequence[Store], columns: Sequence[Sequence[FedColumn]]) -> None:
    """Refuse columns that the stores do not have in common."""
    first, expected = stores[0], [column.name for column in columns[0]]
    for store, own in zip(stores, columns, strict=True):
        names = [column.name for column in own]
        for odd in sorted({*names} ^ {*expected}):
            has, lacks = (store, first) if odd in names else (first, store)
            raise OptionError(
                f"column {odd!r} is in {has.name}, but not in {lacks.name}. Name those that all have: columns=[…].",
                parameter="columns",
            )
        for name in names:
            if _form(store, name) != _form(first, name):
                raise OptionError(
                    f"column {name!r} is {_form(first, name)} in {first.name}, but {_form(store, name)} in {store.name}. "
                    f"Pack both alike (dtype=), or leave it out of columns=.",
                    parameter="dtype",
                )


def _form(store: Store, name: str) -> str:
    column = store.schema[name]
    return f"{column.label if column.kind != 'category' else f'category ({column.dtype})'} per {column.level}"


def check_batch_fits(columns: Sequence[FedColumn], rows: int, steps: int) -> None:
    """Refuse batches of `rows` samples of `steps` that memory cannot hold: a system that promises more of it kills the process."""
    needed = rows * sum(column.unit * (steps if column.level == "step" else 1) for column in columns)
    free = available_host_bytes()
    if needed > free:
        raise OptionError(
            f"batch_size is {rows:,}: a batch takes {readable_bytes(needed)}, but {readable_bytes(free)} of memory are available. "
            f"Use a smaller one.",
            parameter="batch_size",
        )

"""Feeds of several stores: their columns one store behind the other, and a gather that reads each store's rows from its own.

    StoreGroup       the stores of a feed, where it needs one name, one digest and one number of series
    JoinedColumn     a column of all stores
    MixtureGather    `HostGather` for several stores

Samples, series and steps are numbered on from store to store (`JoinedSamples` in `sampling/mixture.py`). On a device the columns of
all stores lie end to end in one tensor. On the host they stay where they are, and one call of a kernel gathers from all of them: it
takes the memory from the first to the last column as one array, and reads only rows of columns. One call per store, which writes to
rows here and there, has 0.6 of the speed (docs/journal.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import FeedError, StoreDamagedError
from stoker.feed.columns import SHOWN, FedColumn
from stoker.feed.gather import HostGather
from stoker.feed.scaling import Scales
from stoker.sampling.mixture import JoinedSamples, end_to_end
from stoker.sampling.views import Lengths, Located
from stoker.store.store import Store


@dataclass(frozen=True)
class StoreGroup:
    """The stores of a feed."""

    stores: tuple[Store, ...]

    @property
    def name(self) -> str:
        """Their names."""
        return " + ".join(store.name for store in self.stores)

    @property
    def path(self) -> None:
        """A group has no folder of its own."""
        return None

    @cached_property
    def digest(self) -> str | None:
        """A hash of their digests; None where one is in memory."""
        digests = [store.digest for store in self.stores]
        return None if None in digests else xxhash.xxh3_128_hexdigest(" ".join(map(str, digests)).encode())

    def __len__(self) -> int:
        return sum(map(len, self.stores))


@dataclass(frozen=True)
class _JoinedLengths(Lengths):
    parts: tuple[Lengths, ...] = ()

    def bounds(self, first: int = 0, last: int | None = None) -> Array:
        steps = np.cumsum([0, *(part.num_steps for part in self.parts)])
        joined = end_to_end([part.bounds()[:-1] for part in self.parts], steps)
        return joined[first : None if last is None else last + 1]


@dataclass(frozen=True)
class JoinedColumn(FedColumn):
    """A column of several stores. `values` is the memory from the first to the last of its pieces, with all that is between."""

    _: KW_ONLY
    parts: tuple[FedColumn, ...]
    places: Array
    """Where in `values` the piece of each store begins."""

    def refuse_overflow(self, series: Array, starts: Array, counts: Array) -> None:
        """Raise for the first finite value that is delivered as an infinite one, if there is one."""
        firsts = np.cumsum([0, *(part.lengths.num_series for part in self.parts)])
        for i, part in enumerate(self.parts):
            mine = (series >= firsts[i]) & (series < firsts[i + 1]) & (counts > 0)
            part.refuse_overflow(series[mine] - firsts[i], starts[mine] - self.places[i], counts[mine])

    @property
    def pieces(self) -> tuple[FedColumn, ...]:
        """The column in each store of the feed."""
        return self.parts

    def overflow(self, series: int, row: int) -> FeedError:
        """The error for a row with a value that cannot be delivered."""
        i = 0
        while series >= self.parts[i].lengths.num_series:
            series, row = series - self.parts[i].lengths.num_series, row - len(self.parts[i].values)
            i += 1
        return self.parts[i].overflow(series, row)


def join_columns(stores: Sequence[Store], columns: Sequence[Sequence[FedColumn]]) -> list[FedColumn]:
    """The columns of all stores, which must agree in name, type, width and level."""
    lengths = tuple(fed[0].lengths for fed in columns)
    joined = _JoinedLengths(
        num_series=sum(length.num_series for length in lengths),
        num_steps=sum(length.num_steps for length in lengths),
        name=" + ".join(length.name for length in lengths),
        parts=lengths,
    )
    made: list[FedColumn] = []
    for i, column in enumerate(columns[0]):
        parts = tuple(fed[i] for fed in columns)
        values, places = _spanning([np.require(part.values, requirements="A").reshape(-1) for part in parts])
        made.append(
            JoinedColumn(
                column.name,
                column.level,
                values,
                dtype=column.dtype,
                torch_name=column.torch_name,
                width=column.width,
                lengths=joined,
                scales=_join_scales([part.scales for part in parts]),
                observed=column.observed,
                shift=column.shift,
                parts=parts,
                places=places,
            )
        )
    return made


class _Memory:
    """Memory at an address, as NumPy asks for it."""

    def __init__(self, address: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, True), "shape": shape, "typestr": dtype.str}


def _spanning(arrays: list[Array]) -> tuple[Array, Array]:
    """One array from the first to the last of some flat arrays, and the places in it at which each begins.

    Only their own values may be read: what is between them may not be mapped. They must outlive the array.
    """
    addresses = np.array([array.ctypes.data for array in arrays], dtype=np.int64)
    is_filled = np.array([array.size > 0 for array in arrays])
    if not is_filled.any():
        return arrays[0], np.zeros(len(arrays), dtype=np.int64)
    first = int(addresses[is_filled].min())
    places: Array = np.where(is_filled, addresses - first, 0) // arrays[0].itemsize
    end = max(int(place) + len(array) for place, array in zip(places, arrays, strict=True))
    return np.asarray(_Memory(first, (end,), arrays[0].dtype)), places


def _join_scales(scales: Sequence[Scales | None]) -> Scales | None:
    known = [scale for scale in scales if scale is not None]
    if not known:
        return None
    centers, divisors = (np.concatenate(parts) for parts in zip(*known, strict=True))
    return Scales(centers, divisors)


@kernel
def _moved(rows: Array, firsts: Array, places: Array, unit: int) -> Array:
    """Rows that are numbered on from store to store (each has those from `firsts` on), as places of values, `unit` per row.

    One pass per store, which the compiler makes vectors of. A row behind the last of a store is taken for one of the next
    store: it begins a sample without steps.
    """
    moved = np.empty(len(rows), dtype=np.int64)
    for i in range(len(rows)):
        moved[i] = rows[i] * unit + places[0]
    for s in range(1, len(places)):
        distance = (places[s] - firsts[s] * unit) - (places[s - 1] - firsts[s - 1] * unit)
        for i in range(len(rows)):
            moved[i] += distance if rows[i] >= firsts[s] else 0
    return moved


class MixtureGather(HostGather):
    """Copies samples of several stores into slots."""

    samples: JoinedSamples

    def _starts(self, column: FedColumn, found: Located) -> Array:
        """The place of the first value of each sample in the memory of all stores."""
        if not isinstance(column, JoinedColumn):
            raise TypeError(f"column {column.name!r} is of one store")
        samples, is_step = self.samples, column.level == "step"
        rows, firsts = (found.starts, samples.first_steps) if is_step else (found.series, samples.first_series)
        return _moved(rows, firsts, column.places, column.width or 1)

    def origin(self, numbers: Array) -> str:
        """The store and series of some samples, in words; also where the samples cannot be found."""
        samples, shown = self.samples, []
        for number in numbers[:SHOWN].tolist():
            i = int(np.searchsorted(samples.firsts, number, side="right")) - 1
            try:
                series = f"{samples.parts[i].locate(np.array([number - samples.firsts[i]])).series[0]:,}"
            except StoreDamagedError:
                series = "?"
            shown.append(f"{series} of store {i}")
        return f"series {', '.join(shown)}{', …' if len(numbers) > SHOWN else ''} in {', '.join(self.files)}"

"""Feeds of several stores: their columns one store behind the other, and a gather that reads each store's rows from its own.

    StoreGroup       the stores of a feed, where it needs one name, one digest and one number of series
    JoinedColumn     a column of all stores
    MixtureGather    `HostGather` for several stores

Samples, series and steps are numbered on from store to store (`JoinedSamples` in `sampling/mixture.py`). On the host each store's
rows of a batch are written to their places in one slot; on a device the columns of all stores lie end to end in one tensor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import xxhash

from stoker._types import Array
from stoker.errors import FeedError, OptionError, StoreDamagedError
from stoker.feed import padding
from stoker.feed.columns import FedColumn, Scales
from stoker.feed.transfer import HostGather
from stoker.sampling.mixture import JoinedSamples
from stoker.sampling.views import Lengths, Located
from stoker.store.store import Store

SHOWN = 4
"""Samples, or texts, that a message names."""


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


def list_stores(given: Store | Sequence[Store]) -> tuple[Store, ...]:
    """The store or stores that a feed was given; what they are is checked where they are read."""
    if isinstance(given, Store) or not isinstance(given, list | tuple):
        return (given,)  # type: ignore[return-value]
    if not given:
        raise OptionError("store is an empty list; expected a store, or a list of stores.")
    return tuple(given)


def list_for(stores: tuple[Store, ...], name: str, given: Any) -> list[Any]:
    """An option with one value per store, or None for all of them."""
    if given is None:
        return [None] * len(stores)
    values = list(given) if isinstance(given, list | tuple) else [given]
    if len(values) != len(stores):
        raise OptionError(f"{name} has {len(values)} values for {len(stores)} stores; expected a list with one per store.")
    return values


@dataclass(frozen=True)
class _JoinedLengths(Lengths):
    parts: tuple[Lengths, ...] = ()

    def bounds(self, first: int = 0, last: int | None = None) -> Array:
        steps = np.cumsum([0, *(part.num_steps for part in self.parts)])
        inside = [part.bounds()[:-1] + base for part, base in zip(self.parts, steps, strict=False)]
        joined: Array = np.concatenate([*inside, steps[-1:]])
        return joined[first : None if last is None else last + 1]


@dataclass(frozen=True)
class JoinedColumn(FedColumn):
    """A column of several stores. `values` is empty: the values are those of its pieces."""

    _: KW_ONLY
    parts: tuple[FedColumn, ...] = ()

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


def share_categories(
    stores: Sequence[Store], columns: Sequence[list[FedColumn]], given: Mapping[str, Sequence[str]] | None
) -> tuple[list[list[FedColumn]], dict[str, list[str]]]:
    """The columns of each store with codes that mean the same in all, and the texts that codes refer to.

    Codes of a store number its texts as they first appear in its rows. They are kept where they mean what they should, and
    are mapped to others, in memory, where they do not.
    """
    names = [column.name for column in columns[0] if stores[0].schema[column.name].kind == "category"]
    shared: dict[str, list[str]] = {}
    for name in names:
        known: dict[str, int] = {text: i for i, text in enumerate((given or {}).get(name, ()))}
        for store in stores:
            new = [text for text in _texts(store, name) if text not in known]
            if given is not None and name in given and new:
                shown = ", ".join(map(repr, new[:SHOWN])) + (", …" if len(new) > SHOWN else "")
                raise OptionError(
                    f"column {name!r} of {store.name} holds {shown}; expected one of the {len(known):,} texts of categories=."
                )
            known.update({text: len(known) + i for i, text in enumerate(new)})
        shared[name] = list(known)
    made = []
    for store, own in zip(stores, columns, strict=True):
        made.append([_recoded(column, _texts(store, column.name), shared.get(column.name)) for column in own])
    return made, shared


def _recoded(column: FedColumn, texts: list[str], shared: list[str] | None) -> FedColumn:
    if shared is None or shared[: len(texts)] == texts:
        return column
    places = {text: i for i, text in enumerate(shared)}
    table = np.array([*(places[text] for text in texts), -1], dtype=column.values.dtype)  # the last one is for missing values, -1
    return replace(column, values=table[column.values])


def _texts(store: Store, name: str) -> list[str]:
    column = store.schema.get(name)
    return [] if column is None or column.texts is None or column.kind != "category" else list(column.texts)


def join_columns(stores: Sequence[Store], columns: Sequence[Sequence[FedColumn]]) -> list[FedColumn]:
    """The columns of all stores, which must agree in name, type, width and level."""
    lengths = tuple(own[0].lengths for own in columns)
    joined = _JoinedLengths(
        num_series=sum(one.num_series for one in lengths),
        num_steps=sum(one.num_steps for one in lengths),
        name=" + ".join(one.name for one in lengths),
        parts=lengths,
    )
    return [
        JoinedColumn(
            column.name,
            column.level,
            column.values[:0],
            dtype=column.dtype,
            torch_name=column.torch_name,
            width=column.width,
            lengths=joined,
            scales=_join_scales([own[i].scales for own in columns]),
            parts=tuple(own[i] for own in columns),
        )
        for i, column in enumerate(columns[0])
    ]


def check_columns(stores: Sequence[Store], columns: Sequence[Sequence[FedColumn]]) -> None:
    """Refuse columns that the stores do not have in common."""
    first, expected = stores[0], [column.name for column in columns[0]]
    for store, own in zip(stores, columns, strict=True):
        names = [column.name for column in own]
        for odd in sorted({*names} ^ {*expected}):
            has, lacks = (store, first) if odd in names else (first, store)
            raise OptionError(f"column {odd!r} is in {has.name}, but not in {lacks.name}. Name those that all have: columns=[…].")
        for name in names:
            if _form(store, name) != _form(first, name):
                raise OptionError(
                    f"column {name!r} is {_form(first, name)} in {first.name}, but {_form(store, name)} in {store.name}. "
                    f"Pack both alike (dtype=), or leave it out of columns=."
                )


def _form(store: Store, name: str) -> str:
    column = store.schema[name]
    return f"{column.label if column.kind != 'category' else f'category ({column.dtype})'} per {column.level}"


def _join_scales(scales: Sequence[Scales | None]) -> Scales | None:
    known = [one for one in scales if one is not None]
    if not known:
        return None
    centers, divisors = (np.concatenate([one[i] for one in known]) for i in range(2))
    return Scales(centers, divisors, known[0].truncate)


class MixtureGather(HostGather):
    """Copies samples of several stores into slots: for each store one call of a kernel per column."""

    _samples: JoinedSamples

    def _fill_columns(self, arrays: dict[str, Array], numbers: Array, found: Located, places: Array, steps: int | None) -> None:
        samples, rows = self._samples, len(found.counts)
        order, ends = samples.group(numbers)
        groups = []
        for i in range(len(samples.parts)):
            own = order[ends[i] : ends[i + 1]]
            if len(own):
                series, starts = found.series[own] - samples.first_series[i], found.starts[own] - samples.first_steps[i]
                inside = Located(series, starts, found.counts[own])
                groups.append((i, own, inside, places[own]))
        has_tails = steps is not None and self._samples.padded | (len(numbers) < rows)
        for column in self._columns:
            target = arrays["column " + column.name]
            for i, own, inside, goals in groups:
                if column.level == "step":
                    self._fill(column.pieces[i], target, inside, goals, None, len(own))
                else:
                    values = np.empty((len(own), *target.shape[1:]), dtype=target.dtype)
                    self._fill(column.pieces[i], values, inside, goals, None, len(own))
                    target[own] = values
            if column.level == "series":
                target[len(numbers) :] = 0
            elif has_tails and steps is not None:
                padding.clear_tails(target.reshape(-1).view(np.uint8), found.counts, steps, column.unit)

    def origin(self, numbers: Array) -> str:
        """The store and series of some samples, in words; also where the samples cannot be found."""
        samples, shown = self._samples, []
        for number in numbers[:SHOWN].tolist():
            i = int(np.searchsorted(samples.firsts, number, side="right")) - 1
            try:
                series = f"{samples.parts[i].locate(np.array([number - samples.firsts[i]])).series[0]:,}"
            except StoreDamagedError:
                series = "?"
            shown.append(f"{series} of store {i}")
        return f"series {', '.join(shown)}{', …' if len(numbers) > SHOWN else ''} in {', '.join(self._files)}"

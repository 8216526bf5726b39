"""Mixture: one order over the samples of several stores, each of which is read in its own order.

The law: the k-th sample of a store with the weight w is due at (k + 0.5) / w. The samples of all stores are read by the time they
are due, those due at the same time by store. So any part of an epoch has each store's share of samples, to within one. A store that
has given all of its samples begins its own next epoch, however far the others are; without weights all of them do so together.

The stores and ranks of any range of positions are computed when asked for: the state of a mixture is a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from stoker._kernels import kernel
from stoker._types import Array
from stoker.errors import OptionError
from stoker.sampling.orders import ByLength, Order, Plan, ShufflePlan, Weighted
from stoker.sampling.permutation import epoch_key, permute_range
from stoker.sampling.subset import Runs, SubsetSamples
from stoker.sampling.views import AnyView, Draw, Lengths, Located, Samples

MOST_JOINED = 2**22
"""Series of all stores whose offsets are joined: 32 MB. Samples of more series are found store by store."""
_STORES = 7
"""The purpose of the keys that the seeds of stores are made of; `orders.py` has those below."""


class JoinedSamples:
    """The samples of several stores, one store behind the other: samples, series and steps are numbered on."""

    def __init__(self, parts: Sequence[Samples], lengths: Sequence[Lengths], view: AnyView) -> None:
        self.parts = list(parts)
        self.firsts = _running([part.num_samples for part in parts])
        """The number of the first sample of each store, and of all samples; likewise of series and steps."""
        self.first_series = _running([part.num_series for part in parts])
        self.first_steps = _running([length.num_steps for length in lengths])
        self.num_samples, self.num_series = int(self.firsts[-1]), int(self.first_series[-1])
        self.row = max(part.row for part in parts)
        self.padded = any(part.padded for part in parts)
        self._names = [length.name for length in lengths]
        self._whole = _over_all(self.parts, lengths, view)

    def group(self, numbers: Array) -> tuple[Array, Array]:
        """The places of these numbers sorted by store, and where the places of each store begin and the last end."""
        places, ends = np.empty(len(numbers), dtype=np.int64), np.zeros(len(self.parts) + 1, dtype=np.int64)
        _group(numbers, self.firsts, places, ends)
        return places, ends

    def draw_of(self, store: int, draw: Draw | None) -> Draw | None:
        """The draw for the samples of one store by their own numbers. Samples at random places are one per series."""
        if draw is None:
            return None
        first = self.first_series[store]
        return lambda numbers, limits: draw(numbers + first, limits)

    def locate(self, numbers: Array, draw: Draw | None = None) -> Located:
        """Where these samples lie."""
        if self._whole is not None:  # as fast as those of one store: no call per store
            whole, runs = self._whole
            return whole.locate(numbers if runs is None else runs.resolve(numbers), draw)
        located = Located(*(np.empty(len(numbers), dtype=np.int64) for _ in range(3)))
        places, ends = self.group(numbers)
        for i, part in enumerate(self.parts):
            mine = places[ends[i] : ends[i + 1]]
            if len(mine):
                inside = part.locate(numbers[mine] - self.firsts[i], self.draw_of(i, draw))
                _put(mine, *inside, self.first_series[i], self.first_steps[i], *located)
        return located

    def first_samples(self) -> Array | None:
        """The number of the first sample of each series, and of all samples; None where each series is one sample."""
        inside = [part.first_samples() for part in self.parts]
        if all(firsts is None for firsts in inside):
            return None
        filled = [
            np.arange(part.num_series + 1) if firsts is None else firsts for firsts, part in zip(inside, self.parts, strict=True)
        ]
        return end_to_end([firsts[:-1] for firsts in filled], self.firsts)

    def notes(self) -> Sequence[str]:
        """Those of each store."""
        return [f"{name}: {note}" for name, part in zip(self._names, self.parts, strict=True) for note in part.notes()]


def _over_all(parts: Sequence[Samples], lengths: Sequence[Lengths], view: AnyView) -> tuple[Samples, Runs | None] | None:
    """The samples of a view over the series of all stores, and those that are in subsets; None where that would take much memory."""
    num_series = sum(length.num_series for length in lengths)
    if num_series > MOST_JOINED or any(length.runs is not None for length in lengths):
        return None
    uniform = {length.length for length in lengths}
    bases = _running([length.num_steps for length in lengths])
    offsets = np.zeros(0, dtype=np.int64)
    if len(uniform) > 1 or None in uniform:
        offsets = end_to_end([length.bounds()[:-1] for length in lengths], bases)
    length = next(iter(uniform)) if not len(offsets) else None
    name = " + ".join(length.name for length in lengths)
    whole = view.over(Lengths(num_series=num_series, num_steps=int(bases[-1]), length=length, offsets=offsets, name=name))
    subsets = [part.subset if isinstance(part, SubsetSamples) else None for part in parts]
    if not any(subset is not None for subset in subsets):
        return whole, None
    sizes = [part.num_samples if subset is None else subset.num_all for part, subset in zip(parts, subsets, strict=True)]
    runs = [
        (np.zeros(1, dtype=np.int64), np.array([size])) if subset is None else (subset.runs.firsts, subset.runs.ends)
        for subset, size in zip(subsets, sizes, strict=True)
    ]
    firsts, ends = (end_to_end(arrays, _running(sizes))[:-1] for arrays in zip(*runs, strict=True))
    return whole, Runs(firsts, ends - firsts)


@dataclass(frozen=True)
class Mixture:
    """An order for each of several stores, and the weights by which they are mixed.

    Args:
        order: `Sequential`, `Shuffle` or `BlockShuffle`. The first store has its seed, each other store a seed that is made of it and of
            the number of the store.
        weights: The share of each store in every part of an epoch. By default the numbers of samples, so that an epoch has every
            sample once. With weights a store that has given all of its samples begins its own next epoch.
        shape: The choices of a saved state, as `MixturePlan.shape` has them.

    Example:
        >>> import stoker
        >>> stoker.Mixture(stoker.Shuffle(seed=0), weights=[1, 3]).seed
        0
    """

    order: Order
    weights: Sequence[float] | None = None
    shape: Mapping[str, int] = field(default_factory=dict)

    def of(self, num_stores: int) -> Mixture:
        """Return the order for this number of stores, if it is possible."""
        if isinstance(self.order, Weighted | ByLength):
            raise OptionError(
                f"order is a mixture by {type(self.order).__name__}, which is over the samples of all stores as one. Leave Mixture out, "
                f"or use Shuffle, BlockShuffle or Sequential.",
                parameter="order",
            )
        if num_stores < 2:
            raise OptionError(
                "order is a Mixture, which is for several stores, but the feed has 1. Give the order itself.", parameter="order"
            )
        if self.weights is None:
            return self
        check_weights(self.weights, [1] * num_stores)
        return replace(self, weights=tuple(map(float, self.weights)))

    @property
    def seed(self) -> int:
        """That of the order."""
        return self.order.seed

    @property
    def kind(self) -> str:
        """What must be the same, beside seed and shape, for a position to mean the same sample."""
        weights = "sizes" if self.weights is None else check_weights(self.weights, self.weights).tolist()
        return f"mixed by {weights}: {self.order.kind}"

    def over(self, samples: Samples, *, batch_size: int, sample_bytes: float = 0.0) -> MixturePlan:
        """The plan for the samples of several stores."""
        if not isinstance(samples, JoinedSamples):
            raise TypeError(f"a mixture is of several stores, but the samples are {samples!r}")
        plans = []
        for i, part in enumerate(samples.parts):
            order = self.order.adopt(store_seed(self.seed, i), _choices_of(self.shape, i))
            plans.append(order.over(part, batch_size=batch_size, sample_bytes=sample_bytes))
        return MixturePlan(plans, [part.num_samples for part in samples.parts], self.weights)

    def adopt(self, seed: int, shape: Mapping[str, int]) -> Mixture:
        """With the seed and the choices of a saved state."""
        for i in range(len(shape)):  # refuses what contradicts the order, before anything has changed
            self.order.adopt(seed, _choices_of(shape, i))
        return Mixture(self.order.adopt(seed, {}), self.weights, shape)


def store_seed(seed: int, store: int) -> int:
    """The seed of one of several stores."""
    return seed if store == 0 else int(epoch_key(seed, store, _STORES)) >> 1


def _choices_of(shape: Mapping[str, int], store: int) -> dict[str, int]:
    names = {name: name.rstrip("0123456789") for name in shape}
    return {plain: shape[name] for name, plain in names.items() if name == f"{plain}{store}"}


def end_to_end(arrays: Sequence[Array], bases: Array) -> Array:
    """Numbers of each store, numbered on from that store's base; the last base follows."""
    return np.concatenate([*(array + base for array, base in zip(arrays, bases, strict=False)), bases[-1:]])


def _running(counts: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)


@kernel
def _group(numbers: Array, firsts: Array, places: Array, ends: Array) -> None:
    """A counting sort by store; `ends` has one entry more than there are stores."""
    num_stores = len(firsts) - 1
    stores = np.zeros(len(numbers), dtype=np.int64)
    for i in range(len(numbers)):
        for s in range(1, num_stores):
            stores[i] += numbers[i] >= firsts[s]
        ends[stores[i] + 1] += 1
    for s in range(num_stores):
        ends[s + 1] += ends[s]
    following = ends[:-1].copy()
    for i in range(len(numbers)):
        places[following[stores[i]]] = i
        following[stores[i]] += 1


@kernel
def _put(
    places: Array, series: Array, starts: Array, counts: Array, first_series: int, first_step: int, to_series: Array,
    to_starts: Array, to_counts: Array,
) -> None:  # fmt: skip
    for i in range(len(places)):
        to_series[places[i]] = series[i] + first_series
        to_starts[places[i]] = starts[i] + first_step
        to_counts[places[i]] = counts[i]


class MixturePlan:
    """The plans of several stores as one plan; the samples of a store are numbered behind those of the stores before it."""

    def __init__(self, plans: Sequence[Plan], num_samples: Sequence[int], weights: Sequence[float] | None = None) -> None:
        sizes = [plan.num_positions for plan in plans]
        self.plans = list(plans)
        self.num_positions = sum(sizes)
        self.shape: Mapping[str, int] = {f"{name}{i}": value for i, plan in enumerate(plans) for name, value in plan.shape.items()}
        self._bases = np.concatenate([[0], np.cumsum(num_samples)[:-1]]).astype(np.int64)
        self._periods = 1.0 / check_weights(weights, sizes)
        self._per_epoch = self._seek(self.num_positions)
        """Samples of each store per epoch of the mixture."""
        self._sizes = np.array(sizes, dtype=np.int64)
        self._shuffles = [plan for plan in plans if isinstance(plan, ShufflePlan)]
        # The epoch of each store and the keys of its permutation; one tuple, so that threads see all of it or the one before.
        self._keys: tuple[Array, Array] | None = None

    def numbers(self, epoch: int, start: int, stop: int) -> Array:
        """The numbers of the samples at positions `start` to `stop` of an epoch, int64."""
        count = max(min(stop, self.num_positions) - start, 0)
        if len(self._shuffles) == len(self.plans):
            shuffled = self._shuffled(epoch, start, count)
            if shuffled is not None:
                return shuffled
        stores = np.empty(count, dtype=np.int64)
        after = self._seek(start)
        before = after.copy()
        _merge(self._periods, after, stores)
        done = epoch * self._per_epoch
        begins, ends = (done + before).tolist(), (done + after).tolist()
        own = [_consecutive(plan, begin, end) for plan, begin, end in zip(self.plans, begins, ends, strict=True)]
        numbers = np.empty(len(stores), dtype=np.int64)
        _weave(stores, np.concatenate(own), after - before, self._bases, numbers)
        return numbers

    def _shuffled(self, epoch: int, start: int, count: int) -> Array | None:
        """The same for stores that are shuffled, by one kernel; None where a store begins its next epoch."""
        numbers, known = np.empty(count, dtype=np.int64), self._keys
        for _ in range(2):
            if known is not None and _shuffle(
                self._periods, start, epoch, self._per_epoch, self._sizes, *known, self._bases, numbers
            ):
                return numbers
            done = epoch * self._per_epoch
            epochs = (done + self._seek(start)) // self._sizes
            keys = [plan.permutation(number).keys for plan, number in zip(self._shuffles, epochs.tolist(), strict=True)]
            known = self._keys = epochs, np.stack(keys)
        return None

    def read_before(self, epoch: int, position: int) -> Array:
        """How many samples of each store come before a position, from the first epoch on."""
        counts: Array = epoch * self._per_epoch + self._seek(position)
        return counts

    def describe(self) -> str:
        """In a line."""
        shares = ", ".join(f"{count / self.num_positions:.1%}" for count in self._per_epoch)
        return f"mixture of {len(self.plans)} stores ({shares}), each {self.plans[0].describe()}"

    def _seek(self, position: int) -> Array:
        """How many samples of each store come before a position: those due before some time, corrected one by one."""
        counts = np.empty(len(self._periods), dtype=np.int64)
        _seek(self._periods, position, counts)
        return counts


def check_weights(weights: Sequence[float] | None, sizes: Sequence[float]) -> Array:
    """The weights as float64 shares; the numbers of samples where there are none."""
    if weights is None:
        return np.asarray(sizes, dtype=np.float64)
    try:
        given = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.shape != (len(sizes),) or not (np.isfinite(given) & (given > 0)).all() or given.max() / given.min() > 2**40:
        raise OptionError(f"weights is {weights!r}; expected {len(sizes)} positive numbers, one per store.", parameter="weights")
    shares: Array = given / given.sum()
    return shares


def _consecutive(plan: Plan, start: int, stop: int) -> Array:
    """Samples `start` to `stop` of a plan that is repeated, epoch after epoch."""
    size = plan.num_positions
    epoch, place = divmod(start, size)
    if place + stop - start <= size:
        return plan.numbers(epoch, place, place + stop - start)
    parts = []
    while start < stop:
        epoch, place = divmod(start, size)
        count = min(stop - start, size - place)
        parts.append(plan.numbers(epoch, place, place + count))
        start += count
    return np.concatenate(parts)


@kernel
def _merge(periods: Array, counts: Array, stores: Array) -> None:
    """The store of each of the next positions; `counts` is moved on."""
    # No due time is kept: branches that are foretold hide the two products, loads that wait for a store do not (3 and 11 ns).
    for i in range(len(stores)):
        best = 0
        for s in range(1, len(periods)):
            if (counts[s] + 0.5) * periods[s] < (counts[best] + 0.5) * periods[best]:
                best = s
        stores[i] = best
        counts[best] += 1


@kernel
def _weave(stores: Array, own: Array, counts: Array, bases: Array, numbers: Array) -> None:
    """The next sample of each position's store; `own` has `counts` samples of each store, end to end."""
    following = np.cumsum(counts) - counts
    for i in range(len(stores)):
        store = stores[i]
        numbers[i] = own[following[store]] + bases[store]
        following[store] += 1


@kernel
def _correct(periods: Array, counts: Array, position: int) -> None:
    """Add what is due next, or take back what was due last, until the counts are those of the position."""
    total = counts.sum()
    # First to a state that merging can reach: nothing taken may be due after something that is left.
    while True:
        last, following = -1, 0
        for s in range(len(periods)):
            if counts[s] > 0 and (last < 0 or (counts[s] - 0.5) * periods[s] >= (counts[last] - 0.5) * periods[last]):
                last = s
            if (counts[s] + 0.5) * periods[s] < (counts[following] + 0.5) * periods[following]:
                following = s
        is_ahead = False
        if last >= 0:
            taken, left = (counts[last] - 0.5) * periods[last], (counts[following] + 0.5) * periods[following]
            is_ahead = taken > left or (taken == left and last > following)
        if total > position or (total == position and is_ahead):
            counts[last] -= 1
            total -= 1
        elif total < position:
            counts[following] += 1
            total += 1
        else:
            return


@kernel
def _seek(periods: Array, position: int, counts: Array) -> None:
    rate = 0.0
    for s in range(len(periods)):
        rate += 1.0 / periods[s]
    for s in range(len(periods)):
        counts[s] = max(np.int64(np.floor(position / rate / periods[s] - 0.5)), 0)
    _correct(periods, counts, position)


@kernel
def _shuffle(
    periods: Array,
    position: int,
    epoch: int,
    per_epoch: Array,
    sizes: Array,
    epochs: Array,
    keys: Array,
    bases: Array,
    numbers: Array,
) -> bool:
    """Permute and merge; False if a store has other samples there than those of its epoch."""
    before = np.empty(len(periods), dtype=np.int64)
    after = np.empty(len(periods), dtype=np.int64)
    _seek(periods, position, before)
    _seek(periods, position + len(numbers), after)
    own = np.empty(len(numbers), dtype=np.int64)
    ahead = np.empty(len(periods), dtype=np.int64)
    end = 0
    for s in range(len(periods)):
        done = epoch * per_epoch[s] - epochs[s] * sizes[s]
        first, last = done + before[s], done + after[s]
        if first < 0 or last > sizes[s]:
            return False
        permute_range(first, sizes[s], keys[s], own[end : end + last - first])
        ahead[s] = end - before[s]  # of the places in `own` to the counts
        end += last - first
    for i in range(len(numbers)):  # as in `_merge`
        best = 0
        for s in range(1, len(periods)):
            if (before[s] + 0.5) * periods[s] < (before[best] + 0.5) * periods[best]:
                best = s
        numbers[i] = own[before[best] + ahead[best]] + bases[best]
        before[best] += 1
    return True

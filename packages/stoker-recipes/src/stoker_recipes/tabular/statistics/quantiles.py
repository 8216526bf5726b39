"""Quantiles, extremes and histograms of numbers, whatever their type: values become ordered keys, keys become runs.

    values ──► keys: uint64 in the same order ──► `KeyRun`: sorted keys with counts ──► `Distribution`: 1001 quantiles

Keys. a < b exactly if the key of a is below that of b, and a key gives its number back bit for bit. The keys of floats put -0.0
before 0.0; NaN and infinite numbers have none. So one sort and one sketch serve all types.

Runs. The sort goes byte by byte, the lowest first, and skips bytes in which all keys agree: a fourth of the time of a comparison
sort, whatever the values (bench_statistics). A run depends only on which keys it holds how often, so runs of chunks merge into the
run of the whole.

Few values are processed by NumPy, without kernels: `compiled` decides. Both ways have the same results, bit for bit.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import UNSET

from stoker.errors import OptionError
from stoker.extend import Array

Keys = npt.NDArray[np.uint64]
Form = Literal["float", "int", "uint"]
"""How numbers are held: float64, int64, or uint64."""


# ---- the JSON: what all columns have, and their limits ----

EXACT, CATEGORIES = 1 << 20, 1 << 16
GROUP = 16
"""Values of a full block of a sketch that one kept value stands for."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to how many different values statistics are exact."""

    exact: int = EXACT
    """Quantiles of numbers and dates are exact for up to `exact` different values; also the block of the sketch."""
    categories: int = CATEGORIES
    """Counts of strings are exact for up to `categories` different ones."""

    def check(self) -> None:
        """Raise `OptionError` for invalid limits."""
        for name, limit in (("exact", self.exact), ("categories", self.categories)):
            if not isinstance(limit, int) or isinstance(limit, bool):
                raise OptionError(f"{name} is {limit!r}; expected an integer.")
        if self.exact < GROUP or self.exact % GROUP or self.exact > 1 << 40:
            raise OptionError(f"exact is {self.exact:,}; expected a multiple of {GROUP}, such as {EXACT:,}.")
        if self.categories < 1:
            raise OptionError(f"categories is {self.categories:,}; expected at least 1.")


class BaseColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all columns have. The values of a list column are the items of its lists."""

    name: str
    type: str
    """Arrow type of one value."""
    num_values: int
    """All values, including missing ones."""
    num_null: int
    """Missing values, including NaN."""
    cnt_lengths: dict[str, int] | None = None
    """For columns of lists: number of lists per length."""
    num_keys: int | None = None
    """Number of keys, where rows have keys. Then `min_n` and `max_n` take one value per key, and `cnt_values` counts the keys of
    a value. Rows without a key do not count, so a value that only they have is counted 0 times."""

    @property
    def num_present(self) -> int:
        """Values that are not missing."""
        return self.num_values - self.num_null


SMALL = 65_536
"""Up to this many values NumPy is done before the kernels would be loaded: 0.08 s of CPU for normals, against 0.65 s."""
_SIGN = np.uint64(2**63)


@cache
def _kernels() -> Any:
    from stoker_recipes.tabular.digits import kernels

    return kernels


def compiled(num_values: int) -> Any:
    """The kernels, or None for so few values that NumPy, which gives the same results, is faster; loaded ones are always used."""
    return _kernels() if num_values > SMALL or _kernels.cache_info().currsize else None


def float_keys(values: Array) -> tuple[Keys, int, int, int]:
    """The keys of all finite values (float64) in their order, the number of NaN and of infinite values, and the first infinite (or -1)."""
    values = np.require(values, requirements=["C", "ALIGNED"])
    bits, finite = values.view(np.int64), np.isfinite(values)
    keys = ((bits >> 63).view(np.uint64) | _SIGN) ^ bits.view(
        np.uint64
    )  # all bits of a negative number are inverted, else the sign
    if finite.all():
        return keys, 0, 0, -1
    infinite = np.isinf(values)
    num_infinite = int(np.count_nonzero(infinite))
    present = keys[finite]
    return present, len(values) - len(present) - num_infinite, num_infinite, int(infinite.argmax()) if num_infinite else -1


def whole_keys(values: Array) -> Keys:
    """The keys of integers (int64 or uint64), as a new array."""
    return values.astype(np.uint64) if values.dtype.kind == "u" else values.view(np.uint64) ^ _SIGN


def decode_keys(keys: Keys, form: Form) -> Array:
    """The numbers of keys: float64, int64 or uint64."""
    if form == "uint":
        return keys.copy()
    if form == "int":
        return (keys ^ _SIGN).view(np.int64)
    return np.where(keys >= _SIGN, keys ^ _SIGN, ~keys).view(np.float64)


def decode_floats(keys: Keys, form: Form) -> npt.NDArray[np.float64]:
    """The numbers of keys as float64, which rounds integers above 2**53."""
    return decode_keys(keys, form).astype(np.float64, copy=False)


@dataclass(frozen=True, eq=False)
class KeyRun:
    """Different keys in ascending order, and the count of each (int64, at least 1)."""

    keys: Keys
    counts: npt.NDArray[np.int64]

    @staticmethod
    def empty() -> KeyRun:
        """No keys."""
        return KeyRun(np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64))

    @staticmethod
    def of(keys: Keys) -> KeyRun:
        """Sort and count; overwrites `keys`."""
        if not len(keys):
            return KeyRun.empty()
        keys.sort()  # with vector instructions, which are as fast here as a radix sort of our own
        ends = np.append(np.flatnonzero(keys[1:] != keys[:-1]), len(keys) - 1)
        if len(ends) == len(keys):
            return KeyRun(keys, np.ones(len(keys), dtype=np.int64))
        return KeyRun(keys[ends], np.diff(ends, prepend=-1))

    def __len__(self) -> int:
        return len(self.keys)

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, KeyRun) and np.array_equal(self.keys, other.keys)
        return isinstance(other, KeyRun) and same and np.array_equal(self.counts, other.counts)

    @cached_property
    def num_values(self) -> int:
        """All counts together."""
        return int(self.counts.sum())

    @property
    def once(self) -> bool:
        """Whether no key occurs twice."""
        return self.num_values == len(self.keys)

    @cached_property
    def _ends(self) -> npt.NDArray[np.int64]:
        return np.cumsum(self.counts, dtype=np.int64)

    def before(self, places: Array) -> npt.NDArray[np.int64]:
        """How many values come before the key at each place; behind the last key, all of them."""
        return places if self.once else np.where(places > 0, self._ends[np.maximum(places, 1) - 1], 0)

    def merge(self, other: KeyRun) -> KeyRun:
        """The run of both."""
        if not len(self) or not len(other):
            return self if len(self) else other
        kernels = compiled(len(self) + len(other))
        if kernels is None:
            keys, places = np.unique(np.concatenate([self.keys, other.keys]), return_inverse=True)
            counts = np.zeros(len(keys), dtype=np.int64)
            np.add.at(counts, places, np.concatenate([self.counts, other.counts]))
            return KeyRun(keys, counts)
        keys = np.empty(len(self) + len(other), dtype=np.uint64)
        counts = np.empty(len(keys), dtype=np.int64)
        size = kernels.merge_runs(self.keys, self.counts, other.keys, other.counts, keys, counts)
        return KeyRun(keys, counts) if size == len(keys) else KeyRun(keys[:size].copy(), counts[:size].copy())

    def narrowed(self) -> KeyRun:
        """The same run, with counts in as few bytes as hold them."""
        return KeyRun(self.keys, self.counts.astype(np.min_scalar_type(int(self.counts.max(initial=0)))))

    def at(self, positions: Array) -> Keys:
        """The keys at positions from 0 on, in the sorted sequence of all values."""
        return self.keys[positions if self.once else np.searchsorted(self._ends, positions, side="right")]

    def cut(self, start: int, stop: int) -> KeyRun:
        """The part of the sorted sequence from position `start` up to `stop`."""
        if start >= stop:
            return KeyRun.empty()
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right")
        counts = self.counts[first : last + 1].copy()
        counts[0] = self._ends[first] - start
        counts[-1] -= self._ends[last] - stop
        return KeyRun(self.keys[first : last + 1].copy(), counts)


ENOUGH = 1 << 18


# ---- sketch: the quantiles of more values than are kept, from a part of them that stands for all ----
# Values come in blocks of a fixed size, the last one open. A full block is sorted and every 16th value is kept, the middle one of
# its group, with weight 16. Two sets of equal weight become one of twice the weight: they are merged and every second value is
# kept. So there is at most one set per level, and the number of values alone says which.
#
# The bound holds for any values in any order, merged in any way. Where values are replaced by the middle of their group, only the
# group that a number x falls into is counted wrongly in "how many values are at most x": by at most 8 for a block, and by at most
# the weight w for two sets of weight w. For b full blocks that sums to
#
#     error = 8 b + sum over i of floor(b / 2**(i + 1)) * 16 * 2**i
#
# ranks. With blocks of 2**20 values: 0.0054 % of 67 million values, 0.008 % of a billion, 0.016 % of 10**12, always less than a
# step between two of a thousand quantiles. The smallest and largest value are kept apart and exact.


def rank_error(num_values: int, block: int) -> int:
    """Bound on how far the rank of a value from a sketch is off, in values."""
    num_blocks = num_values // block
    error, weight = num_blocks * (GROUP // 2), GROUP
    while num_blocks := num_blocks // 2:
        error += num_blocks * weight
        weight *= 2
    return error


class Sketch:
    """Values as an open block (all of them) and levels: level i holds block / 16 keys of weight 16 * 2**i, or none."""

    def __init__(self, block: int) -> None:
        self.block = block
        self.open = KeyRun.empty()
        self.levels: list[Keys | None] = []

    @property
    def num_blocks(self) -> int:
        """How many full blocks there were."""
        return sum(1 << i for i, level in enumerate(self.levels) if level is not None)

    @property
    def num_values(self) -> int:
        """How many values were taken in."""
        return self.num_blocks * self.block + self.open.num_values

    def add(self, run: KeyRun) -> None:
        """Take in values."""
        together = self.open.merge(run)
        num_blocks, num_open = divmod(together.num_values, self.block)
        start = 0
        # Blocks of one run make a level at once: neighbours in order lose less than merging them one by one.
        for level in reversed(range(num_blocks.bit_length())):
            if num_blocks >> level & 1:
                weight = GROUP << level
                stop = start + (self.block << level)
                self._carry(level, together.at(np.arange(start + weight // 2 - 1, stop, weight)))
                start = stop
        self.open = together.cut(start, start + num_open)

    def weighted(self) -> KeyRun:
        """All that is kept, as keys with weights."""
        whole = self.open
        for i, level in enumerate(self.levels):
            if level is not None:
                run = KeyRun.of(level.copy())
                whole = whole.merge(KeyRun(run.keys, run.counts * (GROUP << i)))
        return whole

    def _carry(self, i: int, keys: Keys) -> None:
        """Put a set at its level; where one is already, both go one level up."""
        while True:
            self.levels.extend([None] * (i + 1 - len(self.levels)))
            present = self.levels[i]
            if present is None:
                self.levels[i] = keys
                return
            # The first of each pair, then the second the next time: the errors cancel.
            later = self.num_blocks >> (i + 1) & 1
            both = np.concatenate([present, keys])
            both.sort(kind="stable")  # two sorted halves, which this kind of sort merges
            self.levels[i] = None
            keys, i = both[later::2].copy(), i + 1


# ---- quantiles: exact up to `limit` different values, from a sketch beyond ----
# A quantile is a value that occurs, that of NumPy's `closest_observation`. Whether quantiles are exact depends only on the values,
# not on how they were cut into parts. Where they are not, `rank_error` bounds how far the rank of a quantile may be off.

NUM_QUANTILES = 1001


def closest_positions(num_values: int, shares: Array) -> npt.NDArray[np.int64]:
    """Positions of quantiles in the sorted values: the nearest, and of two equally near the one with the odd number."""
    wanted = num_values * shares - 1.5
    below = np.floor(wanted)
    positions = np.where((wanted == below) & (below % 2 == 1), below, below + 1)
    return np.asarray(np.clip(positions, 0, num_values - 1), dtype=np.int64)


class Distribution:
    """All values while at most `limit` are different, a sketch of them beyond."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.run = KeyRun.empty()
        self.sketch: Sketch | None = None
        self.least: int | None = None
        self.most: int | None = None

    @property
    def num_values(self) -> int:
        """How many values were taken in."""
        return self.run.num_values if self.sketch is None else self.sketch.num_values

    @property
    def rank_error(self) -> int:
        """Bound on how far the rank of a quantile is off; 0 where all values are kept."""
        return 0 if self.sketch is None else rank_error(self.sketch.num_values, self.limit)

    def add(self, run: KeyRun) -> None:
        """Take in values."""
        if not len(run):
            return
        first, last = int(run.keys[0]), int(run.keys[-1])
        self.least = first if self.least is None else min(first, self.least)
        self.most = last if self.most is None else max(last, self.most)
        if self.sketch is not None:
            self.sketch.add(run)
            return
        self.run = self.run.merge(run)
        if len(self.run) > self.limit:
            self.sketch = Sketch(self.limit)
            self.sketch.add(self.run)
            self.run = KeyRun.empty()

    def quantiles(self, shares: Array | None = None) -> Keys:
        """The keys of quantiles (by default 0, 0.001, ... 1); none where there are no values."""
        shares = np.linspace(0, 1, NUM_QUANTILES) if shares is None else shares
        num_values = self.num_values
        if not num_values:
            return np.empty(0, dtype=np.uint64)
        positions = closest_positions(num_values, shares)
        if self.sketch is None:
            return self.run.at(positions)
        keys = self.sketch.weighted().at(positions)
        if self.least is not None and self.most is not None:
            keys[positions == 0] = self.least
            keys[positions == num_values - 1] = self.most
        return keys


# ---- extremes: the 1000 smallest and largest values, from which rare-value protection draws its limits ----

NUM_EXTREMES = 1000
_NO_KEYS = np.empty(0, dtype=np.uint64)


class Extremes:
    """Keys in ascending order: the `smallest`, and the `largest`; a value that occurs twice is there twice."""

    def __init__(self, smallest: Keys = _NO_KEYS, largest: Keys = _NO_KEYS) -> None:
        self.smallest, self.largest = smallest, largest

    @staticmethod
    def of(run: KeyRun) -> Extremes:
        """Those of a run."""
        first = KeyRun(run.keys[:NUM_EXTREMES], run.counts[:NUM_EXTREMES])
        last = KeyRun(run.keys[-NUM_EXTREMES:], run.counts[-NUM_EXTREMES:])
        num_first, num_last = first.num_values, last.num_values
        return Extremes(
            first.at(np.arange(min(num_first, NUM_EXTREMES))), last.at(np.arange(max(num_last - NUM_EXTREMES, 0), num_last))
        )

    def merge(self, other: Extremes) -> None:
        """Take in other extremes."""
        self.smallest = np.sort(np.concatenate([self.smallest, other.smallest]))[:NUM_EXTREMES]
        self.largest = np.sort(np.concatenate([self.largest, other.largest]))[-NUM_EXTREMES:]


# ---- histogram: how many values lie between powers of two, on both sides of zero ----

NUM_BINS = 128
EDGES = (*(-(2.0**i) for i in range(63, -1, -1)), 0.0, *(2.0**i for i in range(64)))
"""-2**63 ... -2, -1, 0, 1, 2 ... 2**63; a bin begins with its edge, and the first and last hold what lies beyond."""
_BOUNDS = {"int": (-(2**63), 2**63 - 1, np.int64), "uint": (0, 2**64 - 1, np.uint64)}


def log_histogram(run: KeyRun, form: Form) -> npt.NDArray[np.int64]:
    """The counts of a run; integers count as the nearest float64."""
    begins = run.before(np.searchsorted(run.keys, _first_keys(form)))
    return np.diff(begins, prepend=0, append=run.num_values)


@cache
def _first_keys(form: Form) -> Keys:
    """The first key of each bin but the first one."""
    inner = EDGES[1:-1]
    if form == "float":
        return float_keys(np.array([-0.0 if edge == 0 else edge for edge in inner]))[0]
    low, high, dtype = _BOUNDS[form]
    return whole_keys(np.array([_first_at(edge, low, high) for edge in inner], dtype=dtype))


def _first_at(edge: float, low: int, high: int) -> Any:
    """The smallest integer that is at least `edge` as a float64."""
    while low < high:
        middle = (low + high) // 2
        if float(middle) >= edge:
            high = middle
        else:
            low = middle + 1
    return low


class OrderedGatherer(ABC):
    """Counts, histogram, extremes and quantiles of the keys of one column, part by part.

    Keys are buffered until there are enough to be worth a sort.
    """

    def __init__(self, form: Form, limit: int) -> None:
        self.form: Form = form
        self.num_values = self.num_null = 0
        self.histogram = np.zeros(NUM_BINS, dtype=np.int64)
        self.extremes = Extremes()
        self.distribution = Distribution(limit)
        self._buffer: list[Keys] = []
        self._num_buffered = 0

    def add_keys(self, keys: Keys) -> None:
        """Take in the keys of values that are present; takes over the array."""
        if len(keys):
            self._buffer.append(keys)
            self._num_buffered += len(keys)
        if self._num_buffered >= ENOUGH:
            self._take()

    def finish(self) -> dict[str, Any]:
        """Take in the keys of the buffer; returns the fields that numbers and dates have."""
        self._take()
        return {
            "num_values": self.num_values,
            "num_null": self.num_null,
            "rank_error": self.distribution.rank_error,
            "log_hist": self.histogram.tolist(),
            "run": UNSET if self.distribution.sketch is not None else self.distribution.run.narrowed(),
        }

    def _take(self) -> None:
        arrays, self._buffer, self._num_buffered = self._buffer, [], 0
        if arrays:
            run = KeyRun.of(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))
            self.histogram += log_histogram(run, self.form)
            self.extremes.merge(self._extremes(run))
            self.distribution.add(run)
            self._widen(run)

    def _extremes(self, run: KeyRun) -> Extremes:
        return Extremes.of(run)

    @abstractmethod
    def _widen(self, run: KeyRun) -> None:
        """Take in what only this kind of column gathers."""

"""Encodings: a column becomes a few class variables (sub-columns), and generated classes become values again.

    Categorical   cat [, fine]       one class per kept category; of thousands, two sub-columns number them
    Numeric       bin [, fine]       intervals of the sorted values; frequent values have one of their own
    LatLong       Numeric twice      strings such as "48.2082, 16.3738"
    Character     P0, P1, ...        one class per character
    Datetime, Relative               in `dates`

What one subject alone has must not come back. So categories, characters and single numbers are kept where at least 5 to 7 subjects
have them (the exact number is drawn), and numbers end where that number of subjects lies beyond. Missing values are a class.

`Numeric` splits the sorted values into up to some 1,000 intervals of nearly equal counts, with shorter ones in the tails. A value that
fills an interval alone, such as a price, is an interval of width 0. Where there are enough values to learn each interval, two
sub-columns number them: `bin` the coarse position and `fine` the rank inside it, by frequency. Otherwise a head for `fine` would only
learn the training rows by heart: a bin is all that is learned, and its intervals are drawn with their shares. Frequent values have bins
of their own: heads begin with the frequencies of their classes, so that a model has the shares of such values before it has learned
anything. A generated interval becomes a uniform draw from it; where it is wider than 1, frequent decimals of such values, such as .99,
are drawn with their share. Values beyond the kept range of a heavy tail are drawn from a law (`Tail`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pyarrow as pa
from msgspec import Struct, structs

from stoker.errors import BadValueError
from stoker.extend import Array
from stoker_recipes.tabular.intervals import count_subjects, count_values, extremes, number_intervals, split_sorted
from stoker_recipes.tabular.intervals import find_intervals as find_intervals
from stoker_recipes.tabular.values import Values, is_text, to_column, to_words

RARE = "_RARE_"
LEAST_SUBJECTS = 5
"""Subjects that must share a value for it to be kept; 0 to 2 more are drawn, so that the limit is not known."""
MOST_CLASSES, MOST_FREQUENT_CLASSES = 2**14, 1024
"""With more categories, those that are not among the most frequent ones share classes: an epoch computes a logit per row and class, and
100,000 of them would take minutes per epoch. What they depend on is learned worse, so fewer have a class each."""
LEAST_PER_INTERVAL = 8
MOST_INTERVALS = 1024
TAIL = 0.1
"""An interval in a tail holds at most this part of the values beyond it."""
ONE_LEVEL = 128
"""Up to this number of intervals, one sub-column numbers them."""
FREQUENT, MOST_FREQUENT = 4, 96
"""A single value is frequent with 4 times the count of a usual interval; at most 96 of them have bins of their own."""
LEAST_LEARNED = 32
"""Values per interval from which intervals are learned, not only bins."""
LEAST_BINS = 8
LEAST_ENDING, MOST_DECIMALS = 0.02, 3
"""The share that decimals must have among values in wide intervals to be drawn with it, and how many decimals there may be."""
MOST_CHARACTERS = 50
Moment = Literal["", "first", "later"]


@dataclass(frozen=True, kw_only=True)
class Subjects:
    """Whose rows they are: the number of the subject of each row, in groups, and how many must share a value."""

    starts: Array
    """The first row of each subject."""
    num_rows: int
    least: int
    """Subjects that must share a value; 0 keeps all."""

    def count(self, codes: Array, num_codes: int) -> Array:
        """The number of subjects that have each code; negative codes are not counted."""
        if len(self.starts) == self.num_rows:  # a row is a subject
            return np.bincount(codes[codes >= 0], minlength=num_codes)
        counts = np.zeros(num_codes, np.int64)
        count_subjects(codes, self.starts, np.full(num_codes, -1), counts)
        return counts

    def bounds(self, data: Array, valid: Array) -> tuple[Any, Any] | None:
        """The range that is left without the subjects with the smallest and the largest values; None where nothing is left."""
        if not self.least or len(self.starts) == self.num_rows:
            lows = highs = data if valid.all() else data[valid]
        else:
            lows, highs = np.empty(len(self.starts), data.dtype), np.empty(len(self.starts), data.dtype)
            count = extremes(data, valid, self.starts, lows, highs)
            lows, highs = lows[:count], highs[:count]
        if len(lows) <= 2 * self.least:
            return None
        low = np.partition(lows, self.least)[self.least]
        high = np.partition(highs, len(highs) - 1 - self.least)[len(highs) - 1 - self.least]
        return (low, high) if low <= high else (high, low)


class Encoding(Struct, frozen=True, kw_only=True, tag_field="kind"):
    """How a column becomes classes. `type` is not part of it: a schema keeps the types of all columns."""

    null_class: ClassVar[int] = 1
    """The class of the first sub-column for a missing value, where there are some."""

    @property
    def inner(self) -> dict[str, Encoding]:
        """The encodings that it is made of, by the begin of the names of their sub-columns."""
        return {}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return {begin + name: size for begin, part in self.inner.items() for name, size in part.sizes.items()}

    def never(self) -> dict[str, list[int]]:
        """Classes that are not to be generated."""
        return {begin + name: classes for begin, part in self.inner.items() for name, classes in part.never().items()}

    def moments(self) -> dict[str, Moment]:
        """Sub-columns that only the first event of a subject has, or only later ones; elsewhere they are 0."""
        return {}

    def ordered(self) -> dict[str, int]:
        """Sub-columns whose classes are in the order of values, from this class on."""
        return {begin + name: first for begin, part in self.inner.items() for name, first in part.ordered().items()}


class Categorical(Encoding, frozen=True, kw_only=True, tag="categorical"):
    """Class 0 of `cat` is any rare value, class 1 (where values are missing) a missing one, then the kept values, sorted.

    Of thousands of values, a class each would cost more than all other columns together. Then the most frequent ones have a class each,
    others share classes, and `fine` numbers them inside of it.
    """

    values: list[str]
    """Those with a class each first; then a class after the other, in the order of `fine`."""
    has_null: bool
    has_rare: bool
    """Whether rare values are generated, as `_RARE_`: there are some, and the column is one of strings."""
    shared: list[int] = []
    """How many values each class that several share has; empty where every value has its own."""

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        coarse = {"cat": 1 + self.has_null + len(self.values) - sum(self.shared) + len(self.shared)}
        return coarse | {"fine": max(self.shared)} if self.shared else coarse

    def never(self) -> dict[str, list[int]]:
        """Classes that are not to be generated."""
        return {} if self.has_rare or self.sizes["cat"] == 1 else {"cat": [0]}

    def own_class(self, value: str) -> int | None:
        """The class of `cat` that a value alone has; None where it shares one, or is not kept."""
        alone = self.values[: len(self.values) - sum(self.shared)]
        return 1 + self.has_null + alone.index(value) if value in alone else None

    def _classes(self) -> Array:
        """The classes of each kept value, (values, sub-columns)."""
        alone = len(self.values) - sum(self.shared)
        cat = np.concatenate([np.arange(alone), np.repeat(alone + np.arange(len(self.shared)), self.shared)])
        if not self.shared:
            return np.asarray(cat + 1 + self.has_null)[:, None]
        inside = np.concatenate([np.zeros(alone, np.int64), *(np.arange(count) for count in self.shared)])
        return np.column_stack([cat + 1 + self.has_null, inside])

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        place = {value: number for number, value in enumerate(self.values)}
        width = len(self.sizes)
        classes = np.concatenate([self._classes(), np.zeros((1, width), np.int64)])  # the last one is a rare value
        table = np.array([place.get(word, -1) for word in values.words.to_pylist()] + [-1], np.int64)
        codes = classes[table[values.data if len(table) > 1 else np.zeros(len(values), np.int64)]]
        codes[~values.valid] = [int(self.has_null), 0][:width]
        return np.asarray(codes)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        inner = kind.value_type if pa.types.is_dictionary(kind) else kind
        words = to_words([RARE if self.has_rare else None, *([None] if self.has_null else []), *self.values], inner)
        number = codes[:, 0]
        if self.shared:
            counts = np.concatenate([np.ones(self.sizes["cat"] - len(self.shared), np.int64), self.shared])
            number = (np.cumsum(counts) - counts)[number] + np.minimum(codes[:, 1], counts[number] - 1)
        column = words.take(pa.array(number))
        return column.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else column


def fit_categorical(values: Values, subjects: Subjects, kind: pa.DataType, *, may_share: bool = True) -> Categorical:
    """Keep the values that enough subjects have; of many, those that are not frequent may share classes."""
    counts = subjects.count(np.where(values.valid, values.data, -1), len(values.words))
    is_kept = counts >= max(1, subjects.least)
    counted = sorted(
        (word, count) for word, keep, count in zip(values.words.to_pylist(), is_kept.tolist(), counts.tolist(), strict=True) if keep
    )
    words, shared = _share_classes(counted) if may_share and len(counted) > MOST_CLASSES else ([word for word, _ in counted], [])
    return Categorical(
        values=words,
        has_null=not bool(values.valid.all()),
        has_rare=bool((counts[~is_kept] > 0).any()) and is_text(kind),
        shared=shared,
    )


def _share_classes(counted: Sequence[tuple[str, int]]) -> tuple[list[str], list[int]]:
    """Give frequent values a class each; others share one with their neighbours, of which the most frequent one is the first."""
    counts = np.array([count for _, count in counted])
    alone = np.argsort(-counts, kind="stable")[:MOST_FREQUENT_CLASSES]
    alone = np.sort(alone[counts[alone] >= FREQUENT * np.median(counts)])
    rest = np.setdiff1d(np.arange(len(counted)), alone)
    groups = [rows[np.argsort(-counts[rows], kind="stable")] for rows in np.array_split(rest, math.isqrt(len(rest)))]
    order = np.concatenate([alone, *groups])
    return [counted[number][0] for number in order.tolist()], [len(group) for group in groups]


class Numeric(Encoding, frozen=True, kw_only=True, tag="numeric"):
    """Closed intervals, sorted. Class 0 of `bin` is a missing value where there are some."""

    null_class = 0
    lows: list[int | float]
    highs: list[int | float]
    decimals: int | None
    """Places after the point that floats are rounded to; None for all that a float has, and for integers."""
    has_null: bool

    bins: list[int] = []
    """The class of `bin` of each interval. Empty where intervals are classes."""
    ranks: list[int] = []
    """The class of `fine` of each interval: the most frequent one of a bin is 0. Empty where `bin` is all that is learned."""
    counts: list[int] = []
    """Values in each interval, where the intervals of a bin are drawn."""
    step: int = 1
    """Integers are multiples of it, counted from the least one."""
    endings: list[tuple[float, float]] = []
    """Frequent decimals in intervals wider than 1, such as 0.99, and their shares."""
    above: Tail | None = None
    below: Tail | None = None
    """What lies beyond the last and before the first interval, where the tail is heavy."""

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        coarse = {"bin": (max(self.bins) + 1 if self.bins else len(self.lows)) + self.has_null}
        return coarse | {"fine": max(self.ranks) + 1} if self.ranks else coarse

    def ordered(self) -> dict[str, int]:
        """Sub-columns whose classes are in the order of values, from this class on."""
        return {"bin": int(self.has_null)}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        number = find_intervals(_ends(np.array(self.lows), np.array(self.highs)).astype(values.data.dtype), values.data)
        codes = np.empty((len(self.sizes), len(number)), np.int16).T  # a sub-column after the other
        bins = np.array(self.bins or range(len(self.lows)), np.int64)
        number_intervals(number, values.valid, bins, np.array(self.ranks or [0], np.int64), int(self.has_null), codes)
        return codes

    def numbers(self, codes: Array, uniform: Array) -> tuple[Array, Array]:
        """Values and whether they are there, of classes and of uniform numbers from [0, 1)."""
        valid = codes[:, 0] >= self.has_null
        number = np.maximum(codes[:, 0] - self.has_null, 0)
        if self.ranks:
            by_class = np.lexsort((self.ranks, self.bins))
            counts = np.bincount(self.bins)
            firsts = np.cumsum(counts) - counts
            number = by_class[firsts[number] + np.minimum(codes[:, 1], counts[number] - 1)]
        elif self.counts:
            number, uniform = self._drawn(number, uniform)
        data = self._inside(number, uniform)
        for tail, end, sign in ((self.above, len(self.lows) - 1, 1), (self.below, 0, -1)):
            if tail is not None:
                # The part of the random number that chose to leave the interval chooses how far.
                left = (number == end) & (uniform < tail.share)
                far = sign * tail.distances(uniform[left] / tail.share)
                data[left] = self._on_grid(self.highs[-1] if sign > 0 else self.lows[0], far)
        return data, valid

    def _on_grid(self, end: float, far: Array) -> Array:
        """Values at distances from an end of the range, as the column has them."""
        if isinstance(end, int):
            return np.asarray(end + self.step * np.copysign(np.ceil(np.abs(far) / self.step), far).astype(np.int64))
        return np.asarray(end + far if self.decimals is None else np.round(end + far, self.decimals))

    def _inside(self, number: Array, uniform: Array) -> Array:
        """Values inside of intervals."""
        lows, highs = np.array(self.lows)[number], np.array(self.highs)[number]
        for tail, end in ((self.above, len(self.lows) - 1), (self.below, 0)):
            if tail is not None and tail.share < 1:
                uniform = np.where(number == end, np.maximum((uniform - tail.share) / (1 - tail.share), 0.0), uniform)
        if lows.dtype.kind == "i":
            steps = (highs - lows) // self.step if self.step > 1 else highs - lows
            return np.asarray(np.minimum(lows + self.step * np.floor(uniform * (steps + 1.0)).astype(np.int64), highs))
        if self.decimals is None:
            return np.asarray(lows + uniform * (highs - lows))
        unit = 10.0**self.decimals
        steps = np.floor(uniform * (np.rint((highs - lows) * unit) + 1))
        data = np.minimum(np.round(lows + steps / unit, self.decimals), highs)
        wide, upto = highs - lows >= 1, np.cumsum([share for _, share in self.endings])
        for (ending, share), total in zip(self.endings, upto, strict=True):
            # The part of the random number that chose the ending chooses the integer before it, too.
            first, last = np.ceil(lows - ending - 1e-9), np.floor(highs - ending + 1e-9)
            inside = (total - uniform) / share
            drawn = wide & (inside > 0) & (inside <= 1) & (first <= last)
            data = np.where(drawn, np.round(first + np.floor((1 - inside) * (last - first + 1)) + ending, self.decimals), data)
        return np.asarray(data)

    def _drawn(self, bins: Array, uniform: Array) -> tuple[Array, Array]:
        """An interval of each bin, drawn by counts, and what is left of the random numbers."""
        by_bin = np.argsort(self.bins, kind="stable")
        total = np.cumsum(np.array(self.counts)[by_bin])
        last = np.cumsum(np.bincount(self.bins)) - 1  # of each bin
        before = np.append(0, total[last[:-1]])
        place = before[bins] + uniform * (total[last] - before)[bins]
        interval = np.minimum(np.searchsorted(total, place, side="right"), last[bins])
        size = np.array(self.counts)[by_bin[interval]]
        return by_bin[interval], np.clip((place - total[interval] + size) / size, 0.0, np.nextafter(1.0, 0.0))

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        data, valid = self.numbers(codes, uniform)
        return to_column(np.where(valid, data, 0), valid, kind)


def _ends(lows: Array, highs: Array) -> Array:
    """The largest value of each interval, so that one that two intervals share belongs to the second, which may be that value alone."""
    ends = highs.copy()
    with np.errstate(over="ignore"):  # there is nothing below the least float
        below = lows - 1 if lows.dtype.kind == "i" else np.nextafter(lows, -np.inf)
    ends[:-1] = np.where(highs[:-1] < lows[1:], highs[:-1], np.maximum(below[1:], lows[:-1]))
    return ends


def make_numeric(
    lows: list[Any], highs: list[Any], *, counts: Array, decimals: int | None = None, has_null: bool = False, is_exact: bool = False
) -> Numeric:
    """Number intervals in one level or two, or number bins of intervals.

    Frequent values have a bin each; the others share bins. Where intervals are learned, bins have nearly equal numbers of them, and in a
    bin the most frequent interval is number 0 of `fine`, and so on. Otherwise bins have nearly equal counts, of about their root.
    `is_exact` keeps a class per interval where there are not many.
    """
    counts = np.asarray(counts)
    is_learned = counts.sum() >= LEAST_LEARNED * len(lows)
    numeric = Numeric(lows=lows, highs=highs, decimals=decimals, has_null=has_null)
    if len(lows) <= (ONE_LEVEL if is_learned or is_exact else LEAST_BINS):
        return numeric
    single = np.flatnonzero((np.array(lows) == np.array(highs)) & (counts >= FREQUENT * np.median(counts)))
    frequent = single[np.argsort(-counts[single], kind="stable")[:MOST_FREQUENT]]
    rest = np.setdiff1d(np.arange(len(lows)), frequent)
    bins = np.zeros(len(lows), np.int64)
    if is_learned:
        num_bins = -(-len(rest) // max(1, math.isqrt(len(rest))))
        bins[rest] = np.arange(len(rest)) * num_bins // len(rest)
    else:
        upto = np.cumsum(counts[rest])
        wanted = min(ONE_LEVEL, max(LEAST_BINS, math.isqrt(int(upto[-1])))) if len(rest) else 0
        bins[rest] = np.unique((upto - counts[rest] // 2) * wanted // upto[-1:], return_inverse=True)[1]
        num_bins = int(bins[rest].max(initial=-1)) + 1
    bins[frequent] = num_bins + np.arange(len(frequent))
    sizes = np.bincount(bins)
    middles = np.bincount(bins, np.arange(len(bins))) / sizes
    bins = np.argsort(np.argsort(middles, kind="stable"))[bins]  # in the order of values
    if not is_learned:
        return structs.replace(numeric, bins=bins.tolist(), counts=counts.tolist())
    by_class = np.lexsort((-counts, bins))
    sizes, ranks = np.bincount(bins), np.zeros(len(lows), np.int64)
    ranks[by_class] = np.arange(len(lows)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return structs.replace(numeric, bins=bins.tolist(), ranks=ranks.tolist())


def fit_numeric(values: Values, subjects: Subjects, *, most: int = MOST_INTERVALS, has_tails: bool = False) -> Numeric | None:
    """Split the values into intervals; None where no value may be kept. `has_tails` lets a heavy tail leave the kept range."""
    bounds = subjects.bounds(values.data, values.valid)
    if bounds is None:
        return None
    ordered = np.clip(values.data if values.valid.all() else values.data[values.valid], *bounds)
    ordered.sort()
    least = LEAST_PER_INTERVAL if subjects.least else 1
    options: dict[str, Any] = {"most": most, "least": least, "tail": TAIL}
    lows, highs, sizes, is_own = split_sorted(ordered, refused=ordered[:0], **options)
    if subjects.least and is_own.any():  # one subject that repeats a value does not make it frequent
        frequent = lows[is_own]
        counts = np.zeros(len(frequent), np.int64)
        place, last = find_intervals(frequent, values.data), np.full(len(frequent), -1)
        count_values(values.data, values.valid, *bounds, place, frequent, subjects.starts, last, counts)
        if (counts < subjects.least).any():
            lows, highs, sizes, is_own = split_sorted(ordered, refused=frequent[counts < subjects.least], **options)
    is_narrow = ((sizes < least) | (lows == highs)) & ~is_own & bool(subjects.least)
    # Values of few subjects between two frequent ones must not be generated exactly: their interval reaches to its neighbours.
    wide_lows, wide_highs = np.append(lows[0], highs[:-1]), np.append(lows[1:], highs[-1])
    lows, highs = np.where(is_narrow, wide_lows, lows), np.where(is_narrow, wide_highs, highs)
    decimals, step = decimals_of(ordered), _step(ordered)
    numeric = make_numeric(
        lows.tolist(), highs.tolist(), counts=sizes, decimals=decimals, has_null=not bool(values.valid.all()), is_exact=not subjects.least
    )  # fmt: skip
    if has_tails and subjects.least and len(lows) > 1:
        above, below = _tails(values, subjects, ordered, int(sizes[-1]), int(sizes[0]))
        numeric = structs.replace(numeric, above=above, below=below)
    if not decimals or decimals > MOST_DECIMALS:
        return structs.replace(numeric, step=step)
    is_wide = np.repeat((highs - lows >= 1) & ~is_own, sizes)
    return structs.replace(numeric, endings=_endings(ordered[is_wide], decimals))


def _tails(values: Values, subjects: Subjects, ordered: Array, num_last: int, num_first: int) -> tuple[Tail | None, Tail | None]:
    """Heavy tails above and below the kept values, which are sorted. Shares stay below 1, and positive values positive."""
    low, high = ordered[0], ordered[-1]

    def beyond(data: Array, sorted_values: Array, size: int, limit: float) -> Tail | None:
        is_cut = (data > sorted_values[-1]) & values.valid
        tail = tail_of(sorted_values, int(np.count_nonzero(is_cut)), size, limit=limit)
        if tail is None or len(subjects.starts) == subjects.num_rows:
            return tail
        in_tail = np.where(values.valid & (data > tail_begin(sorted_values)), 0, -1)
        return tail if subjects.count(in_tail, 1)[0] >= LEAST_TAIL_SUBJECTS else None

    above = beyond(values.data, ordered, num_last, 1.0 if low >= 0 and high <= 1 else 0.0 if high <= 0 else np.inf)
    return above, beyond(-values.data, -ordered[::-1], num_first, 0.0 if low >= 0 else np.inf)


def _endings(values: Array, decimals: int) -> list[tuple[float, float]]:
    """Decimals that many of these values have, and their shares."""
    unit = 10**decimals
    counts = np.bincount(np.rint(values * unit).astype(np.int64) % unit, minlength=unit)
    shares = counts / max(1, len(values))
    frequent = np.flatnonzero((shares >= max(LEAST_ENDING, FREQUENT / unit)) & (counts >= FREQUENT * LEAST_PER_INTERVAL))
    return [(int(ending) / unit, float(shares[ending])) for ending in frequent]


def _step(sorted_values: Array) -> int:
    """What the differences of integers have in common: 86,400 for whole days in seconds."""
    if sorted_values.dtype.kind != "i":
        return 1
    divisor = 0
    for some in (sorted_values[:: max(1, len(sorted_values) // 1000)], sorted_values):
        above = some.astype(np.uint64) - sorted_values[:1].astype(np.uint64)  # which int64 may not hold
        divisor = int(np.gcd(np.uint64(divisor), np.gcd.reduce(above)))
        if divisor == 1:
            break
    return max(1, divisor) if divisor < 2**62 else 1


def decimals_of(sorted_values: Array) -> int | None:
    """Places after the point that all values have at most; None for integers, and for more than 9."""
    if sorted_values.dtype.kind != "f":
        return None
    some = sorted_values[:: max(1, len(sorted_values) // 1000)]
    with np.errstate(over="ignore", invalid="ignore"):  # of values that have no more places
        for places in range(10):
            if (np.round(some, places) == some).all() and (np.round(sorted_values, places) == sorted_values).all():
                return places
    return None


class Character(Encoding, frozen=True, kw_only=True, tag="character"):
    """The first characters, one sub-column each: class 0 is a rare one, class 1 the end, then the kept ones, sorted."""

    alphabets: list[str]
    """The kept characters of each place."""
    has_null: bool

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        places = {f"P{place}": 2 + len(letters) for place, letters in enumerate(self.alphabets)}
        return ({"nan": 2} if self.has_null else {}) | places

    def never(self) -> dict[str, list[int]]:
        """Classes that are not to be generated."""
        return {f"P{place}": [0] for place in range(len(self.alphabets))}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        points = code_points(values.words.to_pylist(), len(self.alphabets))
        codes = np.zeros_like(points)
        for place, letters in enumerate(self.alphabets):
            known = np.array([0, *map(ord, letters)])
            at = np.minimum(np.searchsorted(known, points[:, place]), len(known) - 1)
            codes[:, place] = np.where(known[at] == points[:, place], at + 1, 0)
        rows = codes[values.data] if len(codes) else np.zeros((len(values), len(self.alphabets)), np.int64)
        rows = np.where(values.valid[:, None], rows, 0)
        return np.column_stack([~values.valid, rows]).astype(np.int64) if self.has_null else rows

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        valid = codes[:, 0] == 0 if self.has_null else np.ones(len(codes), bool)
        text = np.full(len(codes), "", dtype=object)
        for place, letters in enumerate(self.alphabets):
            text = text + np.array(["", "", *letters], object)[codes[:, place + self.has_null]]
        return to_words([word if is_valid else None for word, is_valid in zip(text.tolist(), valid.tolist(), strict=True)], kind)


def code_points(words: Sequence[str], length: int) -> Array:
    """The code points of strings, 0 behind their ends."""
    if not words or not length:
        return np.zeros((len(words), length), np.int64)
    return np.array(words, f"U{length}").view(np.uint32).reshape(len(words), length).astype(np.int64)


def fit_character(values: Values, subjects: Subjects) -> Character:
    """Keep the characters that enough subjects have at a place."""
    words = values.words.to_pylist()
    points = code_points(words, min(MOST_CHARACTERS, max(map(len, words), default=0)))
    alphabets = []
    for place in range(points.shape[1]):
        distinct, codes = np.unique(points[:, place], return_inverse=True)
        counts = subjects.count(np.where(values.valid, codes[values.data], -1), len(distinct))
        alphabets.append("".join(map(chr, distinct[(counts >= max(1, subjects.least)) & (distinct > 0)])))
    return Character(alphabets=alphabets, has_null=not bool(values.valid.all()))


PLACE = re.compile(r"\s*(-?\d+(?:\.\d*)?)\s*,\s*(-?\d+(?:\.\d*)?)\s*")


class LatLong(Encoding, frozen=True, kw_only=True, tag="lat_long"):
    """Latitude, then longitude, each as `Numeric`."""

    null_class = 0
    latitude: Numeric
    longitude: Numeric

    @property
    def inner(self) -> dict[str, Encoding]:
        """The encodings that it is made of, by the begin of the names of their sub-columns."""
        return {"lat_": self.latitude, "lon_": self.longitude}

    @property
    def has_null(self) -> bool:
        """Whether values are missing."""
        return self.latitude.has_null

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        lat, lon = _places("", values)
        return np.concatenate([self.latitude.encode(lat, starts), self.longitude.encode(lon, starts)], 1)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        width = len(self.latitude.sizes)
        # The second draw must not follow from the first.
        lat, valid = self.latitude.numbers(codes[:, :width], uniform)
        lon, _ = self.longitude.numbers(codes[:, width:], (uniform * 7919.0) % 1.0)
        form = "{:." + str(self.latitude.decimals or 0) + "f}, {:." + str(self.longitude.decimals or 0) + "f}"
        words = [form.format(*pair) if is_valid else None for *pair, is_valid in zip(lat, lon, valid.tolist(), strict=True)]
        return to_words(words, kind)


def _places(name: str, values: Values) -> tuple[Values, Values]:
    """Latitudes and longitudes of strings."""
    numbers = np.zeros((len(values.words) + 1, 2))
    for row, word in enumerate(values.words.to_pylist()):
        match = PLACE.fullmatch(word)
        if match is None or abs(float(match[1])) > 90 or abs(float(match[2])) > 180:
            raise BadValueError(
                f"column {name!r} has the value {word!r}; expected a latitude and a longitude such as '48.2082, 16.3738'."
            )
        numbers[row] = np.round([float(match[1]), float(match[2])], 5)
    rows = np.where(values.valid[:, None], numbers[values.data], 0.0)
    lat, lon = (Values(family="number", data=np.ascontiguousarray(rows[:, place]), valid=values.valid) for place in (0, 1))
    return lat, lon


def fit_lat_long(name: str, values: Values, subjects: Subjects) -> LatLong | None:
    """Split latitudes and longitudes into intervals; None where no value may be kept."""
    lat, lon = (fit_numeric(place, subjects) for place in _places(name, values))
    return None if lat is None or lon is None else LatLong(latitude=lat, longitude=lon)


# ---- tails: numbers beyond the protected range, drawn from a law ----
# Protection cuts the values of the 5 to 7 subjects with the largest ones. That lowers the mean of the largest values: by 20 % for the
# top 1 % of 2,000 Pareto values. So a generalized Pareto law is fitted to the largest fifth of the values, after the cut, and what was
# cut is drawn from it. Smaller tails count where they are much lighter: a bump of large values makes the fit to a fifth too heavy. The
# fit sees how many values were cut, not by how much: no extreme value has a part in it, however large it is. Tails that are lighter than
# exponential ones have no law, and generated values stay in the protected range.

BODIES = (0.8, 0.95, 0.985)
"""The shares of values below the tail."""
LEAST_TAIL, LEAST_TAIL_SUBJECTS = 40, 20
"""Values that are not cut, and subjects, that a tail must have."""
MOST_FITTED = 1000
"""Values that the law is fitted to. Of more, this number is taken at equal distances in their order."""
USUAL_SHAPE = 0.25
"""The deviation of shapes from 0 that is expected before values are seen: some 50 values say little about a shape."""
LEAST_SHAPE, MOST_SHAPE = -0.1, 0.7
"""Shapes of laws that are drawn from: -1 is a uniform law, 0 an exponential one, and 1 has no mean."""
MUCH_LIGHTER = 0.5
"""The mean beyond the end, by a smaller tail, in parts of that by a larger one, below which the smaller tail counts."""
BEYOND = 0.1
"""Draws end where a sample of the size of the training data has this number of values beyond."""
MOST_EXACT = 2.0**52


class Tail(Struct, frozen=True, kw_only=True):
    """What lies beyond an end of the protected range: distances from it have a generalized Pareto law."""

    share: float
    """Of the values of the last interval."""
    scale: float
    shape: float
    """Not 0."""
    most: float
    """The longest distance."""

    def distances(self, uniform: Array) -> Array:
        """Distances from the end of the range, of numbers from [0, 1)."""
        last = max(0.0, 1 + self.shape * self.most / self.scale) ** (-1 / self.shape)
        left = 1 - uniform * (1 - last)
        return np.asarray(np.minimum(self.scale * (left**-self.shape - 1) / self.shape, self.most))


def fit_tail(distances: Array, end: float, num_cut: int) -> tuple[float, float]:
    """Scale and shape of a generalized Pareto law, by maximum likelihood.

    Args:
        distances: Of values from the begin of the tail, above 0 and below `end`.
        end: The distance where values are cut.
        num_cut: How many are.

    Returns:
        Scale and shape, at the begin of the tail.
    """
    # With rate = shape / scale, the best shape for a rate is known, which leaves one number to find. Negative rates end beyond the cut.
    rates = np.concatenate([-np.linspace(0.98, 0.02, 49) / end, np.logspace(-3, 2, 101) / distances.mean()])
    logs = np.log1p(rates[:, None] * distances).sum(1)
    shapes = (logs + num_cut * np.log1p(rates * end)) / len(distances)
    likelihoods = -len(distances) * (np.log(shapes / rates) + 1) - logs - (shapes / USUAL_SHAPE) ** 2 / 2
    best = int(np.argmax(likelihoods))
    return float(shapes[best] / rates[best]), float(shapes[best])


def tail_of(ordered: Array, num_cut: int, num_last: int, *, limit: float = np.inf) -> Tail | None:
    """The law beyond the upper end of values; None where nothing is cut, the tail ends there, or there are too few values.

    Args:
        ordered: Values, sorted; those beyond the end are cut to it.
        num_cut: How many are.
        num_last: Values in the last interval.
        limit: The largest value that may be generated.
    """
    end = float(ordered[-1])
    first_cut, laws = int(np.searchsorted(ordered, ordered[-1])), []
    for body in BODIES:
        begin = tail_begin(ordered, body)
        inside = ordered[np.searchsorted(ordered, begin, side="right") : first_cut] - begin
        if not num_cut or len(inside) < LEAST_TAIL or max(abs(begin), abs(end)) > MOST_EXACT:
            break
        every = -(-len(inside) // MOST_FITTED)
        fitted = inside[every // 2 :: every].astype(np.float64)
        scale, shape = fit_tail(fitted, end - begin, round((len(ordered) - first_cut) / every))
        laws.append((scale + shape * (end - begin), min(shape, MOST_SHAPE)))  # the same law, seen from the end
    if not laws:
        return None
    scale, shape = laws[0]
    for law in laws[1:]:  # a smaller tail says less, so it must say something else
        if law[0] / (1 - law[1]) < MUCH_LIGHTER * scale / (1 - shape):
            scale, shape = law
    most = min(scale * ((num_cut / BEYOND) ** shape - 1) / shape, limit - end)
    return Tail(share=num_cut / num_last, scale=scale, shape=shape, most=most) if shape >= LEAST_SHAPE and most > 0 else None


def tail_begin(ordered: Array, body: float = BODIES[0]) -> float:
    """Where the tail of sorted values begins."""
    return float(ordered[int(body * len(ordered))])

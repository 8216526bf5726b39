"""Encodings of numbers as mostlyai-engine has them, on request: `encodings={"amount": "digit"}`.

Digit     nan, neg, E2, E1, E0, E-1, ...    one class per decimal digit
Binned    bin                               up to 100 intervals between quantiles, with classes for unknown, missing, minimum, maximum
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.encode import split_digits
from stoker.recipes.tabular.encodings import Encoding, Subjects, find_intervals
from stoker.recipes.tabular.values import Values, to_column

MOST_BINS = 100
HIGHEST, LOWEST = 18, -8
"""The highest and the lowest decimal place of digits."""


class Digit(Encoding, frozen=True, kw_only=True, tag="digit"):
    """Decimal digits between the highest and the lowest place, counted from the smallest that occurs there."""

    highest: int
    lows: list[int]
    """The smallest digit of each place, from the highest place on."""
    highs: list[int]
    low: float
    high: float
    has_null: bool
    has_negative: bool

    @property
    def _lowest(self) -> int:
        return self.highest - len(self.lows) + 1

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        flags = ({"nan": 2} if self.has_null else {}) | ({"neg": 2} if self.has_negative else {})
        both = zip(self.lows, self.highs, strict=True)
        return flags | {f"E{self.highest - place}": high - low + 1 for place, (low, high) in enumerate(both)}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        clipped = np.clip(values.data.astype(np.float64), self.low, self.high)
        split = split_digits(np.where(values.valid, clipped, 0.0), max_decimal=self.highest, min_decimal=self._lowest)
        low = np.array(self.lows)
        digits = np.clip(np.asarray(split.digits, np.int64) - low, 0, np.array(self.highs) - low)
        flags = ([~values.valid] if self.has_null else []) + ([np.asarray(split.negative) > 0] if self.has_negative else [])
        return np.column_stack([*flags, np.where(values.valid[:, None], digits, 0)]).astype(np.int64)

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        valid = codes[:, 0] == 0 if self.has_null else np.ones(len(codes), bool)
        if self.has_null and np.isinf(self.low):  # so few values that none may be kept
            valid = np.zeros(len(codes), bool)
        flags = int(self.has_null) + int(self.has_negative)
        places = self.highest - np.arange(len(self.lows))
        numbers = ((codes[:, flags:] + np.array(self.lows)) * 10.0**places).sum(1)
        if self.has_negative:
            numbers = np.where(codes[:, flags - 1] == 1, -numbers, numbers)
        numbers = np.round(np.clip(numbers, self.low, self.high), -self._lowest)
        return to_column(np.where(valid, numbers, 0.0), valid, kind)


def fit_digit(values: Values, subjects: Subjects) -> Digit | None:
    """Find the places and digits that occur; None where no value may be kept."""
    bounds = subjects.bounds(values.data, values.valid)
    if bounds is None:
        return None
    kept = np.clip(values.data[values.valid].astype(np.float64), float(bounds[0]), float(bounds[1]))
    digits = np.asarray(split_digits(kept, max_decimal=HIGHEST, min_decimal=LOWEST).digits, np.int64)
    used = np.flatnonzero(digits.any(0))
    # From the highest place that is not always 0 to the lowest one, and to the ones at least.
    first, last = min([*used, HIGHEST]), max([*used, HIGHEST])
    window = digits[:, first : last + 1]
    return Digit(
        highest=HIGHEST - int(first),
        lows=window.min(0).tolist(),
        highs=window.max(0).tolist(),
        low=float(bounds[0]),
        high=float(bounds[1]),
        has_null=not bool(values.valid.all()),
        has_negative=bool((kept < 0).any()),
    )


class Binned(Encoding, frozen=True, kw_only=True, tag="binned"):
    """Class 0 is unknown, then a missing value where there are some, the minimum, the maximum, and the intervals."""

    edges: list[float]
    decimals: int
    """Places after the point that values are rounded down to."""
    has_null: bool
    has_ends: bool = True
    """Whether the minimum and the maximum are classes: not where no value may be kept."""

    @property
    def _first(self) -> int:
        return 1 + self.has_null + 2 * self.has_ends

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return {"bin": self._first + len(self.edges) - 1}

    def never(self) -> dict[str, list[int]]:
        """Classes that are not to be generated."""
        return {"bin": [0]} if self.sizes["bin"] > 1 else {}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        numbers, edges = values.data.astype(np.float64), np.array(self.edges)
        inner = edges[1:-1]
        codes = (find_intervals(np.append(np.nextafter(inner, -np.inf), np.inf), numbers) + self._first).astype(np.int64)
        if len(edges) == 1:  # no interval
            codes[:] = self._first - 1
        if self.has_ends:
            codes[numbers == edges[0]] = self._first - 2
            codes[numbers == edges[-1]] = self._first - 1
        codes[~values.valid] = int(self.has_null)
        return codes[:, None]

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        code, edges = codes[:, 0], np.array(self.edges)
        valid = code > self.has_null if self.has_ends else np.zeros(len(code), bool)
        place = np.clip(code - self._first, 0, max(0, len(edges) - 2))
        unit = 10.0**self.decimals
        upper = edges[np.minimum(place + 1, len(edges) - 1)]
        numbers = np.floor((edges[place] + uniform * (upper - edges[place])) * unit) / unit
        numbers = np.where(code == self._first - 2, edges[0], np.where(code == self._first - 1, edges[-1], numbers))
        return to_column(np.where(valid, np.clip(numbers, edges[0], edges[-1]), 0.0), valid, kind)


def fit_binned(values: Values, subjects: Subjects) -> Binned | None:
    """Find up to 100 intervals between quantiles; None where no value may be kept."""
    bounds = subjects.bounds(values.data, values.valid)
    if bounds is None:
        return None
    kept = np.sort(np.clip(values.data[values.valid].astype(np.float64), float(bounds[0]), float(bounds[1])))
    edges = np.unique(kept)
    for count in range(MOST_BINS + 1, 1001) if len(edges) > MOST_BINS + 1 else ():
        edges = np.unique(kept[np.linspace(0, len(kept) - 1, count).round().astype(np.int64)])
        if len(edges) >= MOST_BINS + 1:
            break
    if len(edges) == 1:
        edges = np.append(edges, edges)
    places = np.asarray(split_digits(kept, max_decimal=HIGHEST, min_decimal=LOWEST).digits).any(0)
    lowest = HIGHEST - max([*np.flatnonzero(places), HIGHEST])
    return Binned(edges=edges.tolist(), decimals=-int(lowest), has_null=not bool(values.valid.all()))

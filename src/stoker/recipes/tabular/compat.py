"""Encodings of numbers as mostlyai-engine has them, on request: `encodings={"amount": "digit"}`.

    Digit     nan, neg, E2, E1, E0, E-1, ...    one class per decimal digit
    Binned    bin                               up to 100 intervals between quantiles, with classes for unknown, missing, minimum, maximum

`encoding_of` makes an encoding from the entry of a column in a stats.json, so that codes are those of a model that was trained there.
One difference stays: where a value is missing, the other digits are 0 and not drawn at random.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.encode import split_digits
from stoker.errors import OptionError
from stoker.recipes.tabular.encodings import RARE, Categorical, Encoding, Subjects, find_intervals
from stoker.recipes.tabular.values import Values, to_column

NULL = "<<NULL>>"
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

    @property
    def _first(self) -> int:
        return 3 + self.has_null

    @property
    def sizes(self) -> dict[str, int]:
        """The number of classes of each sub-column."""
        return {"bin": self._first + len(self.edges) - 1}

    def never(self) -> dict[str, list[int]]:
        """Classes that are not to be generated."""
        return {"bin": [0]}

    def encode(self, values: Values, starts: Array) -> Array:
        """The codes of values, (rows, sub-columns)."""
        numbers, edges = values.data.astype(np.float64), np.array(self.edges)
        inner = edges[1:-1]
        codes = (find_intervals(np.append(np.nextafter(inner, -np.inf), np.inf), numbers) + self._first).astype(np.int64)
        codes[numbers == edges[0]] = self._first - 2
        codes[numbers == edges[-1]] = self._first - 1
        codes[~values.valid] = int(self.has_null)
        return codes[:, None]

    def decode(self, codes: Array, kind: pa.DataType, starts: Array, uniform: Array) -> pa.Array:
        """The values of codes."""
        code, edges = codes[:, 0], np.array(self.edges)
        valid = ~(self.has_null & (code == 1))
        place = np.clip(code - self._first, 0, len(edges) - 2)
        unit = 10.0**self.decimals
        numbers = np.floor((edges[place] + uniform * (edges[place + 1] - edges[place])) * unit) / unit
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


def encoding_of(stats: Mapping[str, Any]) -> Categorical | Digit | Binned:
    """The encoding of a column, from its entry in the stats.json of mostlyai-engine.

    Args:
        stats: The entry: `json.load(file)["columns"][name]`.

    Raises:
        OptionError: Its kind is not one of TABULAR_CATEGORICAL, TABULAR_NUMERIC_DISCRETE, _DIGIT and _BINNED.

    Example:
        >>> encoding_of({"encoding_type": "TABULAR_CATEGORICAL", "codes": {"_RARE_": 0, "a": 1}, "no_of_rare_categories": 0}).values
        ['a']
    """
    kind = str(getattr(stats["encoding_type"], "value", stats["encoding_type"]))
    codes = list(map(str, stats.get("codes", ())))
    if kind in ("TABULAR_CATEGORICAL", "TABULAR_NUMERIC_DISCRETE"):
        known = [one for one in codes if one not in (RARE, NULL)]
        if kind != "TABULAR_CATEGORICAL" and stats["min_decimal"] < 0:  # floats as Arrow writes them: 50, not 50.0
            known = pa.array([float(one) for one in known], pa.float64()).cast(pa.string()).to_pylist()
        has_rare = kind == "TABULAR_CATEGORICAL" and bool(stats.get("no_of_rare_categories"))
        return Categorical(values=known, has_null=NULL in codes, has_rare=has_rare)
    if kind == "TABULAR_NUMERIC_DIGIT":
        places = range(stats["max_decimal"], stats["min_decimal"] - 1, -1)
        return Digit(
            highest=stats["max_decimal"],
            lows=[stats["min_digits"][f"E{place}"] for place in places],
            highs=[stats["max_digits"][f"E{place}"] for place in places],
            low=-np.inf if stats["min"] is None else float(stats["min"]),
            high=np.inf if stats["max"] is None else float(stats["max"]),
            has_null=stats["has_nan"],
            has_negative=stats["has_neg"],
        )
    if kind == "TABULAR_NUMERIC_BINNED":
        return Binned(edges=list(map(float, stats["bins"])), decimals=-stats["min_decimal"], has_null=NULL in codes)
    raise OptionError(
        f"the column has the encoding {kind}; expected TABULAR_CATEGORICAL, or TABULAR_NUMERIC_DISCRETE, _DIGIT or _BINNED."
    )

"""Columns: what is known of each column once it has been analysed. They are the parts of the JSON, field by field.

Every kind has `analysis`, which gives what mostlyai-engine's function of that kind gives for the same values, key by key.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stoker.encode.statistics.keys import Form
from stoker.errors import BadValue, OptionError

Encoding = Literal["auto", "discrete", "binned", "digit"]

MAX_DISCRETE = 100
"""Values are counted one by one where fewer than this many are different."""

ESCAPE, RESERVED = "\x01", ("_RARE_", "<<NULL>>")


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is needed to join the quantiles of two parts; bytes are unsigned numbers, little-endian.

    keys      the different values as ordered keys of 8 bytes (with levels: those of the open block)
    counts    how often each occurs, in 1, 2, 4 or 8 bytes each; empty means once
    levels    of the sketch: keys that stand for 16, 32, 64 ... values each; empty where there are none
    num_keys  where rows have keys: how many of those have each value, in 8 bytes each; where both zeros occur, -0.0 counts as 0.0
    """

    keys: memoryview
    counts: memoryview
    levels: list[memoryview]
    num_keys: memoryview | None = None


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What all columns have. Values of list columns are those within the lists."""

    name: str
    type: str
    """Of one value, as Arrow writes it."""
    num_values: int
    """All values, missing ones too."""
    num_null: int
    """Missing values; NaN is one."""
    cnt_lengths: dict[str, int] | None = None
    """For columns of lists: how many lists have which length."""
    num_keys: int | None = None
    """Where rows have keys: how many. Then `min_n`, `max_n` and `cnt_values` count each key once: one value of it, a value once.
    Rows whose key is missing count for none, so a value that only they have is counted 0 times."""

    @property
    def num_present(self) -> int:
        """Values that are not missing."""
        return self.num_values - self.num_null


class EmptyColumn(Column, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="empty"):
    """A column in which every value is missing, and no type says what they would be."""

    def analysis(self) -> dict[str, Any]:
        """Nothing beside that all is missing."""
        return {"has_nan": self.num_null > 0, "cnt_values": {}}


class NumberColumn(Column, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="number"):
    """A column of numbers."""

    form: Form
    num_infinite: int
    """Infinite values, which are in none of what follows."""
    first_infinite: int | None
    """The row of the first of them, from 0 on (of list columns: the number of the value)."""
    num_negative: int
    num_distinct: int | None
    """How many values are different; null where they are more than are kept."""
    min: int | float | None
    max: int | float | None
    min_digits: dict[str, int]
    max_digits: dict[str, int]
    """The smallest and largest digit at each decimal place, E18 down to E-8 or as far as values have decimals (to E-20)."""
    min_n: list[float]
    max_n: list[float]
    """The 1000 smallest values in ascending order, and the 1000 largest in descending order."""
    cnt_values: dict[str, int] | None
    """How often each value occurs, where fewer than 100 are different."""
    quantiles: list[int | float] | None
    """The values at 0, 0.001, ... 1 of the sorted values; null where there are none."""
    rank_error: int
    """How far the rank of a quantile may be from its own, in values; 0 means exact."""
    log_hist: list[int]
    """How many values lie between powers of two: see `histogram`."""
    state: State | None = None

    def analysis(self, encoding: Encoding = "auto") -> dict[str, Any]:
        """What `analyze_numeric` of mostlyai-engine gives for these values. Raises where it does: for infinite values."""
        if self.num_infinite:
            row = 0 if self.first_infinite is None else self.first_infinite
            raise BadValue(f"column {self.name!r} holds an infinite value in row {row + 1:,}, which has no digits. Replace it.")
        if encoding not in ("auto", "discrete", "binned", "digit"):
            raise OptionError(f"encoding is {encoding!r}, but it is one of auto, discrete, binned, digit.")
        return {
            "has_nan": self.num_null > 0,
            "has_neg": self.num_negative > 0,
            "min_digits": self.min_digits,
            "max_digits": self.max_digits,
            "min_n": self.min_n,
            "max_n": self.max_n,
            "cnt_values": self._counted(encoding),
            "quantiles": self.quantiles if encoding in ("auto", "binned") else None,
            "log_hist": self.log_hist,
        }

    def _counted(self, encoding: Encoding) -> dict[Any, int] | None:
        if encoding in ("binned", "digit"):
            return None
        if self.cnt_values is None and encoding == "discrete":
            from stoker.encode.statistics.numbers import count_values

            return count_values(self)
        number = float if self.form == "float" else int
        return None if self.cnt_values is None else {number(text): count for text, count in self.cnt_values.items()}


class CategoryColumn(Column, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="category"):
    """A column of texts or truth values."""

    num_distinct: int | None
    """How many texts are different; null where they are more than are kept."""
    cnt_values: dict[str, int]
    """How often each text occurs, in the order of the texts; the most frequent ones where there are too many."""
    count_error: int
    """By how much a count may be too low (and a text that is not there may have occurred); 0 means exact."""

    def top(self, num_texts: int) -> dict[str, int]:
        """The most frequent texts, the most frequent first; among equals in the order of the texts."""
        return dict(sorted(self.cnt_values.items(), key=lambda item: -item[1])[:num_texts])

    def analysis(self) -> dict[str, Any]:
        """What `analyze_categorical` of mostlyai-engine gives for these values."""
        if self.count_error:
            raise OptionError(
                f"column {self.name!r} has more different texts than were kept ({len(self.cnt_values):,} left). "
                "Analyse it with a larger `categories`, or take it for no category."
            )
        return {"has_nan": self.num_null > 0, "cnt_values": dict(sorted((_escaped(k), n) for k, n in self.cnt_values.items()))}


class DateColumn(Column, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="date"):
    """A column of dates or moments, in microseconds and without a zone: those with a zone are in UTC."""

    num_distinct: int | None
    min: str | None
    max: str | None
    min_values: dict[str, int]
    max_values: dict[str, int]
    """The smallest and largest year, month, day, hour, minute, second, and digits of the milliseconds."""
    min_n: list[str]
    max_n: list[str]
    quantiles: list[str] | None
    rank_error: int
    log_hist: list[int]
    """Of the microseconds since 1970."""
    state: State | None = None

    def analysis(self) -> dict[str, Any]:
        """What `analyze_datetime` of mostlyai-engine gives for these values."""
        return {
            "has_nan": self.num_null > 0,
            "min_values": self.min_values,
            "max_values": self.max_values,
            "min_n": self.min_n,
            "max_n": self.max_n,
            "log_hist": self.log_hist,
        }


AnyColumn = NumberColumn | CategoryColumn | DateColumn | EmptyColumn


def _escaped(text: str) -> str:
    return ESCAPE + text if text.startswith(ESCAPE) or text in RESERVED else text

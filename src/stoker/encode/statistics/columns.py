"""What is known of each column of a table: the parts of the statistics' JSON, field by field; and their limits.

Each kind of column has `analysis`, which returns what the function of mostlyai-engine for that kind returns for the same values.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stoker.errors import BadValueError, OptionError

Form = Literal["float", "int", "uint"]
"""How numbers are held: float64, int64, or uint64."""
Encoding = Literal["auto", "discrete", "binned", "digit"]
EXACT = 1 << 20
CATEGORIES = 1 << 16
GROUP = 16
"""Values of a full block of a sketch that one kept value stands for."""


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Up to how many different values statistics are exact; parts can be merged only with the same limits."""

    exact: int = EXACT
    """Quantiles of numbers and dates are exact for up to `exact` different values; also the block of the sketch."""
    categories: int = CATEGORIES
    """Counts of strings are exact for up to `categories` different ones."""

    def check(self) -> None:
        """Raise `OptionError` for invalid limits."""
        for name, given in (("exact", self.exact), ("categories", self.categories)):
            if not isinstance(given, int) or isinstance(given, bool):
                raise OptionError(f"{name} is {given!r}; expected an integer.")
        if self.exact < GROUP or self.exact % GROUP or self.exact > 1 << 40:
            raise OptionError(f"exact is {self.exact:,}; expected a multiple of {GROUP}, such as {EXACT:,}.")
        if self.categories < 1:
            raise OptionError(f"categories is {self.categories:,}; expected at least 1.")


MAX_DISCRETE = 100
"""Values are counted individually where fewer than this many are different."""
ESCAPE, RESERVED = "\x01", ("_RARE_", "<<NULL>>")


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What merging the quantiles of two parts needs; bytes are unsigned little-endian numbers.

    keys      the different values as ordered keys of 8 bytes (with levels: those of the open block)
    counts    how often each occurs, in 1, 2, 4 or 8 bytes each; empty means once
    levels    of the sketch: keys that stand for 16, 32, 64 ... values each; empty where there are none
    num_keys  where rows have keys: how many of them have each value, in 8 bytes each; where both zeros occur, -0.0 counts as 0.0
    """

    keys: memoryview
    counts: memoryview
    levels: list[memoryview]
    num_keys: memoryview | None = None


class Column(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
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


class EmptyColumn(Column, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="empty"):
    """A column of which every value is missing and the type is unknown."""

    def analysis(self) -> dict[str, Any]:
        """As for a categorical column without values."""
        return {"has_nan": self.num_null > 0, "cnt_values": {}}


class NumberColumn(Column, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="number"):
    """A column of numbers."""

    form: Form
    num_infinite: int
    """Infinite values, which the fields below leave out."""
    first_infinite: int | None
    """Row of the first infinite value, from 0 (for list columns: the index of the value)."""
    num_negative: int
    num_distinct: int | None
    """Different values; null where there are more than are kept."""
    min: int | float | None
    max: int | float | None
    min_digits: dict[str, int]
    max_digits: dict[str, int]
    """The smallest and largest digit at each decimal place, E18 down to E-8 or as far as values have decimals (to E-20)."""
    min_n: list[float]
    max_n: list[float]
    """The 1000 smallest values in ascending order, and the 1000 largest in descending order."""
    cnt_values: dict[str, int] | None
    """Count of each value, where fewer than 100 are different."""
    quantiles: list[int | float] | None
    """The values at 0, 0.001, ... 1 of the sorted values; null where there are none."""
    rank_error: int
    """Bound on how far the rank of a quantile is off, in values; 0 means exact."""
    log_hist: list[int]
    """Number of values between powers of two; see `quantiles.EDGES`."""
    state: State | None = None

    def analysis(self, encoding: Encoding = "auto") -> dict[str, Any]:
        """What `analyze_numeric` of mostlyai-engine returns for these values. Raises `BadValueError` for infinite values."""
        if self.num_infinite:
            row = 0 if self.first_infinite is None else self.first_infinite
            raise BadValueError(
                f"column {self.name!r} holds an infinite value in row {row + 1:,}, which has no digits. Replace it."
            )
        if encoding not in ("auto", "discrete", "binned", "digit"):
            raise OptionError(f"encoding is {encoding!r}; expected one of auto, discrete, binned, digit.")
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
    """A column of strings or booleans."""

    num_distinct: int | None
    """Different strings; null where there are more than are kept."""
    cnt_values: dict[str, int]
    """Count of each string, sorted by string; of the most frequent ones where there are too many."""
    count_error: int
    """Bound on how much a count is too low (a string that is not listed counts 0); 0 means exact."""

    def top(self, num_texts: int) -> dict[str, int]:
        """The most frequent strings, the most frequent first; ties are sorted by string."""
        return dict(sorted(self.cnt_values.items(), key=lambda item: -item[1])[:num_texts])

    def analysis(self) -> dict[str, Any]:
        """What `analyze_categorical` of mostlyai-engine returns for these values."""
        if self.count_error:
            raise OptionError(
                f"column {self.name!r} has more different strings than were kept ({len(self.cnt_values):,}). "
                "Analyse it with a larger `categories`, or with another kind."
            )
        return {"has_nan": self.num_null > 0, "cnt_values": dict(sorted((_escaped(k), n) for k, n in self.cnt_values.items()))}


class DateColumn(Column, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="date"):
    """A column of dates or timestamps, in microseconds without a time zone: those with a zone are in UTC."""

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
        """What `analyze_datetime` of mostlyai-engine returns for these values."""
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

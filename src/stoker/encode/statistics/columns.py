"""Keys: numbers of any kind as unsigned 64-bit numbers in the same order, so that one sort and one sketch serve all of them.

It stands between the raw values and all that is counted. Law: a < b exactly if the key of a is below that of b; and a key gives
its number back, bit for bit. The keys of floats put -0.0 before 0.0; NaN and infinite numbers have none.
"""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from stoker._types import Array
from stoker.errors import BadValueError, OptionError
from stoker.store.interop import to_numpy

Keys = npt.NDArray[np.uint64]
Form = Literal["float", "int", "uint"]
"""How numbers are held: float64, int64, or uint64."""

SMALL = 65_536
"""Up to so many values the plain way of NumPy ends before kernels would be loaded: 0.08 s of CPU for normals, against 0.65 s."""

_SIGN = np.uint64(2**63)
_KERNELS = "stoker.encode.statistics.kernels"


def compiled(num_values: int) -> Any:
    """The kernels, or None where so few values are to come that the plain way, which has the same results, is sooner done."""
    return importlib.import_module(_KERNELS) if num_values > SMALL or _KERNELS in sys.modules else None


def float_keys(values: Array) -> tuple[Keys, int, int, int]:
    """The keys of all finite values (float64), in their order; how many are NaN, and infinite; and the first infinite (or -1)."""
    values = np.require(values, requirements=["C", "ALIGNED"]).view()
    kernels = compiled(len(values))
    if kernels is None:
        bits, infinite, finite = values.view(np.uint64), np.isinf(values), np.isfinite(values)
        found = np.where(bits >= _SIGN, ~bits, bits | _SIGN)[finite]
        num_infinite = int(np.count_nonzero(infinite))
        first = int(infinite.argmax()) if num_infinite else -1
        return found, len(values) - len(found) - num_infinite, num_infinite, first
    values.flags.writeable = False  # one kind of array, as kernels are compiled for each
    keys = np.empty(len(values), dtype=np.uint64)
    num_keys, num_nan, num_infinite, first = kernels.write_float_keys(values, keys)
    return keys[:num_keys], num_nan, num_infinite, first


def whole_keys(values: Array) -> Keys:
    """The keys of whole numbers (int64 or uint64), as an array of its own."""
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


def write_float_keys(values: Array, keys: Array) -> tuple[int, int, int, int]:
    """Write the keys of the finite values; see `float_keys` for what is returned."""
    bits = values.view(np.uint64)
    num_keys = num_nan = num_infinite = 0
    first = -1
    for i in range(len(values)):
        value, word = values[i], bits[i]
        keys[num_keys] = ~word if word >= _SIGN else word | _SIGN
        infinite = abs(value) == np.inf
        num_nan += value != value
        num_infinite += infinite
        num_keys += not (infinite or value != value)
        if infinite and first < 0:
            first = i
    return num_keys, num_nan, num_infinite, first


# Texts that hold numbers or dates, read as mostlyai-engine reads them where a column of texts is taken for one of these.
#
# Of a text, the first part that looks like a number counts: 12 of "$12", 1 of "1,000", nothing of "n/a". Numbers are those of
# `pandas.to_numeric`, which takes 17 digits and rounds once for each step: up to 15 digits that is the nearest float, with more
# it
# may be a neighbour. The law: a column has the type that all its values have together, int64, uint64, or float64 where one has
# decimals, is missing, or is too large; so all texts are looked at before the first is counted.
# Dates are parsed by pandas itself, as its rules (mixed formats, day or month first) are its own, and depend on the whole column.

_NUMBER = re.compile(r"(-?[0-9]*[.]?[0-9]+(?:[eE][+-]?[0-9]+)?)")
_SLASHES = r"^\s*\d{1,2}/\d{1,2}/\d{4}(?:\s|$)"
_MOST_DIGITS, _MOST_POWER = 17, 308
_POWERS = [float(f"1e{power}") for power in range(_MOST_POWER + 1)]
_INT, _UINT = 2**63 - 1, 2**64 - 1

TYPES: dict[Form, pa.DataType] = {"int": pa.int64(), "uint": pa.uint64(), "float": pa.float64()}


@dataclass(kw_only=True)
class TextForm:
    """Finds the type of the numbers in texts, as these go by."""

    least: int = 0
    most: int = 0
    fractional: bool = False
    """Whether a text is missing, holds no number, or one that is not an integer."""

    def add(self, values: Any) -> None:
        """Take in texts."""
        found, missing = _numbers(values)
        whole = [number for number in found if isinstance(number, int)]
        self.fractional |= missing or len(whole) < len(found)
        self.least, self.most = min([self.least, *whole]), max([self.most, *whole])

    @property
    def form(self) -> Form:
        """The type of all numbers so far."""
        if self.fractional or self.most > _UINT or self.least < -_INT - 1 or (self.least < 0 and self.most > _INT):
            return "float"
        return "int" if self.most <= _INT else "uint"


def numbers_of(values: Any, form: Form) -> pa.Array:
    """The numbers in texts (an array of strings, or a dictionary of them); null where there is none."""
    encoded = _encoded(values)
    parsed = [parse_number(text) or (None, None) for text in encoded.dictionary.to_pylist()]
    return pa.array([found[form == "float"] for found in parsed], TYPES[form]).take(encoded.indices)


def parse_number(text: str | None) -> tuple[int | None, float] | None:
    """The first number in a text: as an integer if it is one, and as a float; None where there is none."""
    found = None if text is None else _NUMBER.search(text)
    if found is None:
        return None
    number = found[0]
    return (int(number) if number.lstrip("-").isdecimal() else None), _float(number)


def _float(text: str) -> float:
    """As pandas reads it: digits into a float one by one, then one multiplication or division by a power of ten."""
    mantissa, _, power = text.lower().partition("e")
    whole, _, decimals = mantissa.lstrip("-").partition(".")
    taken = (whole + decimals)[:_MOST_DIGITS]
    value = 0.0
    for digit in taken:
        value = value * 10.0 + float(digit)
    exponent = max(len(whole) - _MOST_DIGITS, 0) - max(len(taken) - len(whole), 0) + int(power or 0)
    value = -value if text.startswith("-") else value
    if exponent > _MOST_POWER:
        return value * float("inf") if value else 0.0
    if exponent >= 0:
        return value * _POWERS[exponent] if exponent else value
    if exponent >= -_MOST_POWER:
        return value / _POWERS[-exponent]
    below = -exponent - _MOST_POWER
    return value / _POWERS[below] / _POWERS[_MOST_POWER] if below <= _MOST_POWER else value * 0.0


def _numbers(values: Any) -> tuple[list[int | float], bool]:
    """The different numbers in texts, and whether one is missing."""
    encoded = _encoded(values)
    used = encoded.dictionary.take(pa.array(np.unique(to_numpy(encoded.indices.drop_null()))))
    parsed = [parse_number(text) for text in used.to_pylist()]
    found = [one[1] if one[0] is None else one[0] for one in parsed if one is not None]
    return found, encoded.indices.null_count > 0 or None in parsed


def _encoded(values: Any) -> Any:
    """One dictionary of all texts."""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if pa.types.is_string_view(array.type):
        array = array.cast(pa.large_string())
    return array if pa.types.is_dictionary(array.type) else array.dictionary_encode()


def dates_of(values: Any, name: str) -> pa.Array:
    """The dates in texts of a whole column, in microseconds and UTC; null where there is none."""
    try:
        import pandas as pd  # type: ignore[import-untyped, unused-ignore]
    except ImportError:
        raise OptionError(
            f"kinds takes column {name!r} for a date, but it holds strings, which pandas parses. Install pandas, or convert them."
        ) from None
    texts = pd.Series(values.to_pylist(), dtype="object")
    flexible = pd.to_datetime(texts, errors="coerce", utc=True, format="mixed", dayfirst=False)
    texts = texts.mask(flexible.isna(), pd.NA)
    fixed = _parsed(pd, texts)
    slashes = texts.astype("string").str.contains(_SLASHES, regex=True).any()
    if slashes and fixed.isna().sum() > texts.isna().sum():
        other = pd.to_datetime(texts, errors="coerce", utc=True, format="mixed", dayfirst=True)
        fixed = other if other.isna().sum() < fixed.isna().sum() else fixed
    found = fixed.fillna(flexible).dt.tz_localize(None).astype("datetime64[us]")
    return pa.array(found, pa.timestamp("us"), from_pandas=True)


def _parsed(pd: Any, texts: Any) -> Any:
    """All by the format of the first."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that no format was found, and each is parsed for itself
        return pd.to_datetime(texts, errors="coerce", utc=True, dayfirst=False)


# Columns: what is known of each column once it has been analysed. They are the parts of the JSON, field by field.
#
# Every kind has `analysis`, which gives what mostlyai-engine's function of that kind gives for the same values, key by key.

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
            raise BadValueError(
                f"column {self.name!r} holds an infinite value in row {row + 1:,}, which has no digits. Replace it."
            )
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

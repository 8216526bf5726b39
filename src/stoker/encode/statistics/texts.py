"""Texts that hold numbers or dates, read as mostlyai-engine reads them where a column of texts is taken for one of these.

Of a text, the first part that looks like a number counts: 12 of "$12", 1 of "1,000", nothing of "n/a". Numbers are those of
`pandas.to_numeric`, which takes 17 digits and rounds once for each step: up to 15 digits that is the nearest float, with more it
may be a neighbour. The law: a column has the type that all its values have together, int64, uint64, or float64 where one has
decimals, is missing, or is too large; so all texts are looked at before the first is counted.
Dates are parsed by pandas itself, as its rules (mixed formats, day or month first) are its own, and depend on the whole column.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.encode.statistics.keys import Form
from stoker.errors import OptionError
from stoker.store.sharing import to_numpy

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

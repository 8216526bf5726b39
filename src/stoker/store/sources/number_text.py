"""Numbers written as text: exactly what float64 holds, or an error. Shared by the formats that are parsed in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

EXACT_INTEGERS = 2**53
MISSING = b"?"
_INTEGER = re.compile(rb"[+-]?\d+")

Floats = npt.NDArray[np.float64]


class BadNumber(ValueError):
    """A field that is no number, or one that float64 cannot hold."""


def parse_numbers(fields: list[bytes]) -> Floats:
    """Fields as float64, with NaN for "?"."""
    try:
        values = np.fromiter(map(float, fields), dtype=np.float64, count=len(fields))
        suspect = any(b"_" in field for field in fields)  # Python's float takes 1_000
    except ValueError:
        values, suspect = np.empty(0), True
    if suspect:
        values = np.array([_number(field) for field in fields], dtype=np.float64)
    large = np.flatnonzero(np.abs(values) >= EXACT_INTEGERS)
    for i in large.tolist():
        text = fields[i].strip()
        if _INTEGER.fullmatch(text) and (np.isinf(values[i]) or int(text) != int(values[i])):
            raise BadNumber(f"{_shown(text)} is an integer that float64 cannot hold exactly")
    return values


def _number(field: bytes) -> float:
    text = field.strip()
    if text == MISSING:
        return float("nan")
    try:
        if b"_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise BadNumber(f"{_shown(text)} is not a number") from None


def number_lists(rows: Iterable[Floats], *, nan_is_missing: bool) -> pa.Array:
    """Series of float64 as one array of lists; NaN becomes null where it means a missing value."""
    parts = list(rows)
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    values = np.concatenate(parts) if parts else np.empty(0)
    flat = pa.array(values, mask=np.isnan(values)) if nan_is_missing else pa.array(values)
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat)


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace") + ("…" if len(text) > 40 else ""))

"""Numbers written as text: exactly what float64 holds, or an error. Shared by the formats that are parsed in Python."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

EXACT_INTEGERS = 2**53
MISSING = b"?"
_PIECE_BYTES = 256 << 10
_INTEGER = re.compile(rb"[+-]?\d{1,400}")
_MINUS_ZERO = re.compile(rb"-0(?![\d.eE])")
_DECODER = msgspec.json.Decoder(list[float])

Floats = npt.NDArray[np.float64]


class BadNumber(ValueError):
    """A field that is no number, or one that float64 cannot hold."""


def parse_numbers(text: bytes, separator: bytes = b",") -> Floats:
    """Numbers between separators as float64, with NaN for "?"; nothing for a blank text."""
    if not text.strip():
        return np.empty(0)
    if len(text) <= _PIECE_BYTES:
        return _parse_piece(text, separator)
    # As objects of Python, numbers take many times what they take as an array: a long line has few of them at a time.
    parts: list[Floats] = []
    start = 0
    while start <= len(text):
        end = text.find(separator, start + _PIECE_BYTES)
        end = len(text) if end < 0 else end
        parts.append(_parse_piece(text[start:end], separator))
        start = end + len(separator)
    return np.concatenate(parts)


def _parse_piece(text: bytes, separator: bytes) -> Floats:
    values = _as_json(text, separator)
    if values is None:
        values = np.array([_number(field) for field in text.split(separator)], dtype=np.float64)
    large = np.flatnonzero(np.abs(values) >= EXACT_INTEGERS)
    fields = text.split(separator) if large.size else []
    for i in large.tolist():
        field = fields[i].strip()
        if np.isinf(values[i]) and b"inf" not in field.lower():
            raise BadNumber(f"{_shown(field)} is too large a number for float64")
        if _INTEGER.fullmatch(field) and int(field) != int(values[i]):
            raise BadNumber(f"{_shown(field)} is an integer that float64 cannot hold exactly")
    return values


def _as_json(text: bytes, separator: bytes) -> Floats | None:
    """The numbers if they are written as JSON writes them, as most are: four times faster than one by one."""
    if _MINUS_ZERO.search(text):
        return None  # JSON takes it for the integer 0
    try:
        values = np.array(_DECODER.decode(b"[%b]" % text.replace(separator, b",")), dtype=np.float64)
    except msgspec.DecodeError:
        return None
    # Commas within fields that other separators part would make more numbers than there are fields.
    return values if values.size == text.count(separator) + 1 else None


def _number(field: bytes) -> float:
    text = field.strip()
    if text == MISSING:
        return float("nan")
    try:
        if b"_" in text:  # Python takes 1_000 for a number
            raise ValueError
        return float(text.decode("ascii"))
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

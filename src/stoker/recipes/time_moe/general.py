"""Files of series as the authors' `GeneralDataset` reads them: `.jsonl`, `.json` and `.npy`.

A line of `.jsonl`, an element of the list in a `.json` file, or a row of a 2-D `.npy` array is a series: a list of numbers, or an
object that holds one as "sequence". What `numpy.array` makes of a list is the type of that series: integers are int64, and
normalisation in the authors' data set casts back to it, series by series. A pickle is never read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
import psutil

from stoker.errors import SourceEmpty, SourceInvalid, SourceTooLarge
from stoker.units import readable_bytes

Array = npt.NDArray[Any]

KINDS = ("json", "jsonl", "npy")
KEY = "sequence"
EXACT = 2**53
"""Beyond this float64 does not hold every integer."""
MEMORY_SHARE = 0.5
"""Of the free memory, for one file."""
DOCUMENT_COST = 10
"""Bytes of memory per byte of a .json document, which is parsed at once: a list slot and a float object for three characters."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """The series of one file."""

    series: Sequence[Array] | Array
    names: list[str] | None
    own: list[Array] | None
    """`series` once more, where the authors' arithmetic depends on the type of each: types that are mixed, integers beyond
    float64, or of the other byte order."""
    rounded: int | None = None
    """The first series with an integer that float64 does not hold."""


class NotSeries(SourceInvalid):
    """JSON whose first element is not a series: a table, or something else."""


def read_series(path: Path) -> Found:
    """Read all series of a file into memory; an array of `.npy` is mapped. Raises `NotSeries` for JSON that begins otherwise."""
    if path.name.endswith(".npy"):
        return _read_npy(path)
    series: list[Array] = []
    names: list[str] = []
    room = int(psutil.virtual_memory().available * MEMORY_SHARE)
    for number, element in _elements(path):
        place = f"{'line' if path.name.endswith('.jsonl') else 'element'} {number:,} of {path}"
        if not series and not isinstance(element.get(KEY) if isinstance(element, dict) else element, list):
            raise NotSeries(f"{place} is not a list of numbers, nor an object with one as {KEY!r}. Move the file away, or fix it.")
        series.append(_as_array(element, place))
        names += [text for text in _texts(element)[:1] if len(names) == len(series) - 1]
        room -= 2 * series[-1].nbytes  # once more when all are joined
        if room < 0:
            _refuse_large(path)
    if not series:
        raise SourceEmpty(f"{path} holds no series. Remove it, or write one list of numbers per line.")
    types = {one.dtype for one in series if len(one)}
    rounded = next((number for number, one in enumerate(series) if one.dtype.kind in "iu" and _beyond(one)), None)
    own = series if len(types) > 1 or rounded is not None else None
    return Found(series=series, names=names if len(names) == len(series) else None, own=own, rounded=rounded)


def _elements(path: Path) -> Iterator[tuple[int, Any]]:
    """The JSON values of a file, numbered from 1. Empty lines hold none."""
    most = max(1, int(psutil.virtual_memory().available * MEMORY_SHARE / DOCUMENT_COST))
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            if not path.name.endswith(".jsonl"):
                if path.stat().st_size > most:
                    _refuse_large(path)
                found = json.load(file) if path.stat().st_size else []
                if not isinstance(found, list):
                    raise NotSeries(f"{path} is a JSON {_kind_of(found)}; expected a list of series. Move it away, or fix it.")
                yield from enumerate(found, 1)
                return
            while line := file.readline(most):
                number += 1
                if len(line) == most:
                    _refuse_large(path)
                if line.strip():
                    yield number, json.loads(line)
    except UnicodeDecodeError as error:
        raise SourceInvalid(f"{path} is not UTF-8: it has a byte {error.object[error.start]:#04x}. Encode it again.") from error
    except (ValueError, RecursionError) as error:
        if isinstance(error, SourceInvalid | SourceTooLarge):
            raise
        why = (
            error.msg
            if isinstance(error, json.JSONDecodeError)
            else "nested too deeply"
            if isinstance(error, RecursionError)
            else error
        )
        place = f"line {number:,} of {path}" if number else str(path)
        raise SourceInvalid(f"{place} is not JSON: {str(why)[:80]}. Fix it, or move it away.") from error


def _as_array(element: Any, place: str) -> Array:
    """What the authors make of one element, if it is a series of numbers. A null is a missing point: NaN."""
    if isinstance(element, dict) and KEY not in element:
        has = ", ".join(repr(str(key)[:20]) for key in islice(element, 4)) or "no key"
        raise SourceInvalid(f'{place} has no {KEY!r}; it has {has}. Write {{"{KEY}": [numbers]}}, or pack the file: stoker pack')
    values = element[KEY] if isinstance(element, dict) else element
    if not isinstance(values, list):
        raise SourceInvalid(f"{place} is a JSON {_kind_of(values)}; expected a list of numbers.")
    try:
        array = np.array(values)
        if array.dtype == object and None in values:
            array = np.array([np.nan if value is None else value for value in values])
    except ValueError:  # lists of several lengths
        array = np.empty((0, 0))
    if array.ndim != 1:
        raise SourceInvalid(f"{place} holds lists within its list; expected one number per point. Write each channel as a series.")
    if array.dtype.kind not in "iuf":
        at = next((i for i, value in enumerate(values) if not _fits(value)), 0)
        raise SourceInvalid(
            f"{place} has {str(json.dumps(values[at]))[:40]} at point {at + 1:,}; expected numbers, integers of 64 bits at most. "
            f"Write larger ones as floats (1e30), and null or NaN where a point is missing."
        )
    return array


def _fits(value: Any) -> bool:
    return isinstance(value, float | None) or (isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64)


def _beyond(array: Array) -> bool:
    return bool(len(array)) and (int(array.max()) > EXACT or int(array.min()) < -EXACT)


def _texts(element: Any) -> list[str]:
    return [value for value in element.values() if isinstance(value, str)] if isinstance(element, dict) else []


def _kind_of(value: Any) -> str:
    names = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "null"}
    return names.get(type(value), "number")


def _read_npy(path: Path) -> Found:
    """Rows are series; a 1-D array is one series."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        if "Python objects" in str(error) or "pickle" in str(error):
            raise SourceInvalid(
                f"{path} holds Python objects, which are pickles and never read. Save numbers in a 2-D array, or use .jsonl."
            ) from error
        raise SourceInvalid(
            f"{path} is not a .npy file: {str(error).splitlines()[0][:80]}. Make it again, or move it away."
        ) from error
    if found.ndim not in (1, 2) or found.dtype.kind not in "iuf" or found.dtype.itemsize > 8:
        raise SourceInvalid(
            f"{path} holds {found.dtype} of shape {found.shape}; expected numbers, one series per row of a 2-D array."
        )
    if not found.size:
        raise SourceEmpty(f"{path} holds no number (shape {found.shape}). Remove it.")
    rows = np.asarray(found).reshape(1, -1) if found.ndim == 1 else np.asarray(found)
    native = rows.astype(rows.dtype.newbyteorder("="), copy=False)
    return Found(series=native, names=None, own=None if rows.dtype.isnative else list(rows))  # NumPy sums swapped bytes in pieces


def _refuse_large(path: Path) -> NoReturn:
    size = readable_bytes(path.stat().st_size)
    raise SourceTooLarge(
        f"{path} ({size}) needs more than half of the free memory. Pack it first: stoker pack {path} {path.stem}.stoker"
    )

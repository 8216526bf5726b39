"""Fingerprints: 64 bits a row and entry, by which the audit knows a sample again wherever it turns up.

Equal content has equal fingerprints, whatever batch it came in. Zeros at the end do not count, so that a row padded to the
longest of its batch is the same row in another batch; rows of one length stay distinct all the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from stoker.feed.auditing.leaves import Array, Cells
from stoker.feed.auditing.rows import Rows

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def fingerprint(rows: Rows, names: Sequence[str], dtypes: dict[str, np.dtype[Any]] | None = None) -> Words:
    """One line a sample, one column a name; masked rows are left out, absent entries are 0.

    `dtypes` casts arrays first, so that a reference can be compared with batches of another precision.
    """
    table = np.zeros((rows.num_rows, len(names)), dtype=np.uint64)
    for column, name in enumerate(names):
        cells = rows.entries.get(name)
        if cells is not None:
            table[:, column] = _hash_rows(cells, rows.bounds if name in rows.packed else None, (dtypes or {}).get(name))
    return table if rows.valid is None else table[rows.valid]


def combine(table: Words) -> Words:
    """The fingerprint of whole samples, from those of their entries."""
    word = np.full(len(table), _GOLDEN, dtype=np.uint64)
    for column in table.T:
        word = (word ^ column) * _FIRST + _GOLDEN
        word ^= word >> np.uint64(29)
        word *= _SECOND
        word ^= word >> np.uint64(32)
    return word


def seal(array: Array) -> int:
    """The hash of a whole array."""
    return xxhash.xxh3_64_intdigest(array.view(np.uint8).data if array.ndim and array.size else array.tobytes())


def _hash_rows(cells: Cells, bounds: Array | None, dtype: np.dtype[Any] | None) -> Words:
    if isinstance(cells, list):
        return np.fromiter((_hash(_bytes_of(value, dtype)) for value in cells), np.uint64, len(cells))
    array = _cast(cells, dtype)
    num_rows = len(array) if bounds is None else len(bounds) - 1
    if not array.nbytes:
        return np.full(num_rows, _hash(b""), dtype=np.uint64)
    lines = np.ascontiguousarray(array).reshape(len(array), -1).view(np.uint8)
    if bounds is None:
        return np.fromiter((_hash(line.tobytes()) for line in lines), np.uint64, num_rows)
    cuts = bounds.tolist()
    return np.fromiter((_hash(lines[a:b].tobytes()) for a, b in itertools.pairwise(cuts)), np.uint64, num_rows)


def _hash(data: bytes) -> int:
    return xxhash.xxh3_64_intdigest(data.rstrip(b"\0"))


def _cast(array: Array, dtype: np.dtype[Any] | None) -> Array:
    if dtype is None or array.dtype == dtype or array.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        return array
    with np.errstate(over="ignore", invalid="ignore"):  # what does not fit is another content, and is found as such
        return array.astype(dtype)


def _is_numbers(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, int | float | np.generic) for one in value)


def _bytes_of(value: Any, dtype: np.dtype[Any] | None) -> bytes:
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return value
    array = np.asarray(value) if isinstance(value, np.ndarray | np.generic | int | float) or _is_numbers(value) else None
    if array is not None and array.dtype.kind in "biufcmM":
        return _cast(array, dtype).tobytes()
    return repr(value).encode("utf-8", "surrogatepass")

"""Keys: the values of the column that names the series, and the stretches of rows that share one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.errors import BadValue
from stoker.store.packing.field import Field
from stoker.store.packing.values import Locate, to_numbers
from stoker.store.sharing import from_numpy, to_numpy

Array = npt.NDArray[Any]


def key_values(column: pa.Array, field: Field, locate: Locate) -> pa.Array:
    """One key a row, as int64, uint64 or large_string; a missing one is an error."""
    _refuse_missing(column, field, locate)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return _plain(column, field, locate)


def key_stretches(column: pa.Array, field: Field, locate: Locate) -> tuple[pa.Array, Array]:
    """Stretches of rows with one key: the key and the number of rows of each. Looks at each row once."""
    _refuse_missing(column, field, locate)
    if pa.types.is_dictionary(column.type):
        # Codes are compared instead of texts. Two codes of one text make two stretches, which the run joins again.
        starts = _starts(to_numpy(column.indices))
        keys = _plain(column.dictionary.take(column.indices.take(from_numpy(starts))), field, lambda i: locate(int(starts[i])))
    elif field.kind == "text":
        runs = pc.run_end_encode(column, run_end_type=pa.int64())
        starts = np.concatenate([[0], to_numpy(runs.run_ends)[:-1]]) if len(column) else np.empty(0, dtype=np.int64)
        keys = _plain(runs.values, field, lambda i: locate(int(starts[i])))
    else:
        numbers = _plain(column, field, locate)
        starts = _starts(to_numpy(numbers))
        keys = numbers.take(from_numpy(starts))
    return keys, np.diff(starts, append=len(column))


def _starts(values: Array) -> Array:
    """Rows where a value differs from the one before it."""
    return np.flatnonzero(np.concatenate([[True], values[1:] != values[:-1]])) if len(values) else np.empty(0, dtype=np.int64)


def _plain(keys: pa.Array, field: Field, locate: Locate) -> pa.Array:
    if field.kind == "text":
        empty = pc.equal(pc.binary_length(keys), 0)
        if pc.any(empty).as_py():
            raise _missing(field, locate(int(to_numpy(empty).argmax())))
        return keys.cast(pa.large_string())
    if field.kind == "timestamp":
        return from_numpy(to_numbers(keys, field, locate))
    return keys.cast(pa.uint64() if field.dtype == np.uint64 else pa.int64())


def _refuse_missing(column: pa.Array, field: Field, locate: Locate) -> None:
    if column.null_count:
        raise _missing(field, locate(int(to_numpy(pc.is_null(column)).argmax())))


def _missing(field: Field, where: str) -> BadValue:
    return BadValue(f"the key {field.name!r} is missing in {where}. Every row needs a key.")

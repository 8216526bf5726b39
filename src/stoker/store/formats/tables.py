"""Tables in memory as sources: dicts, lists and arrays, stores, pandas, polars, and all else that exports Arrow streams."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import OptionError, SourceInvalidError, StokerError
from stoker.store.formats.base import DataSource, RowLocation, Task, row_chunk
from stoker.store.store import Store


class TableSource(DataSource):
    """An Arrow table in memory, or one that a store's files are mapped as. A position is a number of rows."""

    def __init__(self, table: pa.Table, name: str, path: Path | None = None) -> None:
        self.name = name
        self.path = path
        self.num_bytes = table.nbytes
        self._table = table

    def schema(self) -> pa.Schema:
        return self._table.schema

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return batch_chunks(self._table.to_batches(), schema, start=start, chunk_bytes=chunk_bytes)


def batch_chunks(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int
) -> Iterator[Task]:
    """Slices of record batches of about `chunk_bytes`, starting at row `start.position`."""
    row = 0
    for batch in batches:
        rows_each = max(1, batch.num_rows * chunk_bytes // max(batch.nbytes, 1))
        while batch.num_rows:
            part, batch = batch.slice(0, rows_each), batch.slice(rows_each)
            begin = max(row, min(start.position, row + part.num_rows))
            part = part.slice(begin - row)
            row = begin + part.num_rows
            if part.num_rows:
                table = pa.Table.from_batches([part])
                table = table if schema is None else table.select(schema.names)
                yield partial(row_chunk, table, begin)


def is_table(given: object) -> bool:
    """Whether `given` is data rather than a path or a list of paths."""
    if isinstance(given, Mapping | np.ndarray | Store) or hasattr(given, "__arrow_c_stream__"):
        return True
    if isinstance(given, list | tuple):
        return bool(given) and np.ndim(given[0]) >= 1
    return _library(given) in ("pandas", "polars")  # also what is not a table yet: a LazyFrame, frames of older versions


def table_source(given: Any) -> DataSource:
    """Data in memory as a source; numbers are not copied."""
    name = type(given).__name__
    try:
        return TableSource(_table(given), f"<{name}>")
    except StokerError:
        raise
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise SourceInvalidError(f"the {name} cannot be read as a table: {reason}. {_advice(reason)}") from error


def _table(given: Any) -> pa.Table:
    if isinstance(given, Mapping):
        return pa.table({str(name): _column(str(name), values) for name, values in given.items()})
    if isinstance(given, np.ndarray):
        return pa.table({"value": _column("value", given)})
    if isinstance(given, list | tuple):
        return pa.table({"value": _lists("value", list(given))})
    if _library(given) == "pandas":
        given = _without_index(given)
    if type(given).__name__ == "LazyFrame":
        given = given.collect()
    # All that speaks the Arrow PyCapsule interface. Stores and polars have `to_arrow`: it also turns the string views of polars,
    # which the compute functions of Arrow do not know, into strings.
    found = given.to_arrow() if hasattr(given, "to_arrow") else pa.table(given)
    return found if isinstance(found, pa.Table) else pa.table({given.name or "value": found})


def _library(given: object) -> str:
    return type(given).__module__.partition(".")[0]


def _advice(reason: str) -> str:
    """What to do about an error of Arrow, whose texts say what it is about."""
    if "expected length" in reason:
        return "Give all columns the same number of rows."
    if "too large" in reason:
        return "Give numbers that fit into 64 bits, or floats."
    if "tried to convert" in reason or "xpected" in reason:
        return "Give each column one type."
    return "Give numbers, strings, booleans, dates, or lists of these."


def _without_index(given: Any) -> Any:
    """A frame of pandas whose index has become columns, as it is data: an event id, times."""
    frame = given.to_frame(given.name if given.name is not None else "value") if type(given).__name__ == "Series" else given
    # Integers without a name are only row numbers.
    is_data = any(name is not None for name in frame.index.names) or frame.index.dtype.kind not in "iu"
    return frame.reset_index(drop=not is_data).rename(columns=str)


def _column(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if isinstance(values, list | tuple) and values and np.ndim(values[0]) >= 1:
        return _lists(name, list(values))
    if isinstance(values, list | tuple):
        return pa.array(values)  # stricter than NumPy, which rounds integers beside floats and cuts strings at a NUL
    if _library(values) in ("pandas", "polars") and not isinstance(getattr(values, "dtype", np.dtype(object)), np.dtype):
        # NumPy would round integers beside missing values, and make objects of categories and times with a zone.
        return values.to_arrow() if hasattr(values, "to_arrow") else pa.array(getattr(values, "array", values), from_pandas=True)
    array = np.asarray(values)
    if array.dtype.kind == "O" and not all(isinstance(value, str) or value is None for value in array.ravel()):
        raise OptionError(f"column {name!r} is an object array; give it numbers or strings of one type.")
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(array).reshape(-1)), array.shape[1])
    if array.ndim != 1:
        raise OptionError(f"column {name!r} has {array.ndim} axes; expected 1 (steps) or 2 (series, steps).")
    return pa.array(_native(array))


def _lists(name: str, rows: list[Any]) -> pa.Array:
    if all(isinstance(row, list | tuple) for row in rows):
        return pa.array(rows)
    arrays = [np.asarray(row) for row in rows]
    if any(array.ndim != 1 or array.dtype.kind not in "biuf" for array in arrays):
        raise OptionError(f"column {name!r} must be a list of one-dimensional arrays of numbers.")
    common = np.result_type(*arrays)
    for array in arrays if common.kind == "f" else ():
        exact = 2 ** (np.finfo(common).nmant + 1)
        if array.dtype.kind in "iu" and (large := (array > exact) | (array < -exact)).any():
            raise OptionError(
                f"column {name!r} holds {array[large][0]} and would be {common}, which rounds it. Give all rows one type."
            )
    offsets = np.zeros(len(arrays) + 1, dtype=np.int64)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(_native(np.concatenate(arrays))))


def _native(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return array.astype(array.dtype.newbyteorder("="), copy=False)

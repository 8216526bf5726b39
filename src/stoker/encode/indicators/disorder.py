"""Disorder: bars that are not one series in the order of time are refused, where they show it themselves.

It stands beside the reading of bars. Columns with the usual names of a time or a symbol are looked at, and nothing is computed
from them. Law: an indicator never mixes symbols or runs back in time because an option was left out. Where a key or a time was
given, it was checked then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError, TimeDisorder
from stoker.store.store import Store

Array = npt.NDArray[Any]
Compare = Callable[[Array, Array], Array]

TIMES = ("ts_nyt_epoch", "ts_utc", "ts", "timestamp", "datetime", "date", "time")
KEYS = ("symbol", "ticker", "instrument")
_PIECE = 1 << 20


def time_and_key_columns(names: Sequence[str]) -> list[str]:
    """Columns that may not change within a series, and then those that may not fall.

    Beside a date, a time is one of the day, which falls every night.
    """
    clock = "time" if "date" in {name.lower() for name in names} else None
    times = [name for name in names if name.lower() in TIMES and name.lower() != clock]
    return [name for name in names if name.lower() in KEYS] + times


def refuse_disorder(columns: Mapping[str, Any], *, offsets: Array, order: Array | None) -> None:
    """Check the times and keys of a table of bars; `order` brings its rows together by series, which begin at `offsets`."""
    for name, given in columns.items():
        breaks = _differs if name.lower() in KEYS else _falls
        column = _arrow(given)
        values = None if column is None else _codes(column) if breaks is _differs else _times(column)
        if values is None or len(values) != offsets[-1]:
            continue
        found = _first_break(values if order is None else values[order], offsets, breaks)
        if found is None:
            continue
        rows = (found - 1, found) if order is None else (int(order[found - 1]), int(order[found]))
        before, behind = (f"{column[row].as_py()!s:.60} in row {row + 1:,}" for row in rows)
        if breaks is _falls:
            raise TimeDisorder(f"the time {name!r} of the bars falls: {behind} comes after {before}. Sort the bars by time.")
        raise OptionError(
            f"column {name!r} of the bars holds several series: {behind} comes after {before}. "
            f"Pass series={name!r}, or leave the column out."
        )


def refuse_disorder_of_store(store: Store) -> None:
    """Check the bars of a store; times are known to rise where it was packed by them."""
    steps = {name: column for name, column in store.schema.items() if column.level == "step" and column.width is None}
    for name in time_and_key_columns(list(steps)):
        kind, is_key = steps[name].kind, name.lower() in KEYS
        if kind != "category" if is_key else kind not in ("number", "timestamp") or store.time is not None:
            continue
        values = store.column(name)
        found = _first_break(values, store.offsets, _differs if is_key else _falls)
        if found is None:
            continue
        place = place_in_store(store, found)
        if is_key:
            before, behind = (store.texts(name)[int(values[row])] for row in (found - 1, found))
            raise OptionError(
                f"column {name!r} of the bars holds several series: {behind} in {place} comes after {before}. "
                f"Pass --series {name} when the bars are read."
            )
        before, behind = (_shown(values[row], steps[name].unit) for row in (found - 1, found))
        raise TimeDisorder(
            f"the time {name!r} of the bars falls: {behind} in {place} comes after {before}. "
            f"Pass --time {name} --sort when the bars are read."
        )


def place_in_store(store: Store, row: int) -> str:
    """How messages name a bar of a store."""
    series = int(np.searchsorted(store.offsets, row, side="right")) - 1
    of_series = f" of series {series:,}" if len(store) > 1 else ""
    return f"bar {row - int(store.offsets[series]) + 1:,}{of_series}"


def _first_break(values: Array, offsets: Array, breaks: Compare) -> int | None:
    """The first row that cannot follow the one before it in the same series."""
    for start in range(1, len(values), _PIECE):
        stop = min(start + _PIECE, len(values))
        rows = np.flatnonzero(breaks(values[start - 1 : stop - 1], values[start:stop])) + start
        inside = rows[offsets[np.searchsorted(offsets, rows)] != rows]
        if len(inside):
            return int(inside[0])
    return None


def _falls(before: Array, behind: Array) -> Array:
    missing = np.iinfo(behind.dtype).min if behind.dtype.kind == "i" else np.nan
    return np.asarray((behind < before) & (behind != missing))


def _differs(before: Array, behind: Array) -> Array:
    return np.asarray((before != behind) & (before >= 0) & (behind >= 0))  # what is missing has a code below 0


def _arrow(column: Any) -> Any:
    """A column as an Arrow array; None where it cannot be one."""
    import pyarrow as pa

    if type(column).__module__.partition(".")[0] == "polars":
        column = column.to_arrow()
    try:
        array = column if isinstance(column, pa.Array | pa.ChunkedArray) else pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _codes(array: Any) -> Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    encoded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    return np.asarray(pc.fill_null(encoded.indices.cast(pa.int64()), -1))


def _times(array: Any) -> Array | None:
    """Times as numbers; None where they are no times."""
    import pyarrow as pa
    import pyarrow.compute as pc

    try:
        if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
            first = str(next((text for text in array[:16].to_pylist() if text), ""))
            array = pc.cast(array, pa.timestamp("us", "UTC" if first.endswith("Z") or "+" in first else None))
        if pa.types.is_date(array.type):
            array = pc.cast(array, pa.timestamp("s"))
        if pa.types.is_timestamp(array.type):
            array = pc.fill_null(pc.cast(array, pa.int64()), np.iinfo(np.int64).min)
        if not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
            return None
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    return np.asarray(array.to_numpy(zero_copy_only=False))


def _shown(time: Any, unit: str | None) -> str:
    return str(time) if unit is None else str(np.int64(time).view(f"datetime64[{unit.partition(',')[0]}]"))

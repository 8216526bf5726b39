"""The table of predictions: series, times, columns and values of all rows, as Arrow.

Predicted     predictions of one target column
to_table      such parts as one table
step_times    times of steps, also of those that lie behind the data
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from stoker._types import Array
from stoker.errors import OptionError
from stoker.store.arrow import from_numpy, from_texts
from stoker.store.manifest import NANOSECONDS, parse_frequency
from stoker.store.store import Store

MISSING_TIME = np.iinfo(np.int64).min


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """Predictions of one target column: arrays with one value per row."""

    store: Store
    """Where the series are."""
    time: str | None
    """The column of the store with the times of its steps."""
    series: Array
    """The index of the series in the store."""
    steps: Array
    """The predicted step of the series, from 0; those from its length on lie behind the data."""
    column: str
    values: Mapping[str, Any]
    """`prediction`, and further columns."""
    ahead: Array | None = None
    """How many steps the predicted one lies behind the last step that the model saw."""
    names: Sequence[str] | None = None
    """The name of each series of the store; by default its key, or its number."""
    times: pa.Array | None = None
    """The time of each row, instead of a column of the store."""


def to_table(parts: Sequence[Predicted], *, freq: str | None = None) -> pa.Table:
    """Predictions as an Arrow table; rows of several columns alternate, so that those of one step are together."""
    if not parts:
        raise OptionError("there is nothing to predict.", parameter="data")
    tables = []
    for part in parts:
        names = (
            None if part.names is None else from_texts(part.names).take(from_numpy(part.series.astype(np.int64))).cast(pa.string())
        )
        columns: dict[str, Any] = {"series": names_of(part.store, part.series) if names is None else names}
        if part.times is not None:
            columns["time"] = part.times
        elif part.time is not None:
            columns["time"] = step_times(part.store, part.time, part.series, part.steps, freq=freq)
        columns["step"] = from_numpy(part.steps.astype(np.int64))
        if part.ahead is not None:
            columns["ahead"] = from_numpy(part.ahead.astype(np.int64))
        columns["column"] = pa.DictionaryArray.from_arrays(
            from_numpy(np.zeros(len(part.steps), dtype=np.int32)), from_texts([part.column])
        ).cast(pa.string())
        for name, values in part.values.items():
            columns[name] = (
                from_texts(values).cast(pa.string()) if isinstance(values, list) else from_numpy(np.ascontiguousarray(values))
            )
        tables.append(pa.table(columns))
    if len(tables) == 1:
        return tables[0]
    whole = pa.concat_tables(tables, promote_options="permissive")
    sizes = [len(table) for table in tables]
    if len({id(part.store) for part in parts}) == 1 and len(set(sizes)) == 1:  # targets of the same steps
        whole = whole.take(from_numpy(np.arange(len(whole)).reshape(len(tables), -1).T.reshape(-1)))
    return whole


def step_times(store: Store, name: str, series: Array, steps: Array, *, freq: str | None = None) -> pa.Array:
    """The times of some steps; those behind the data follow by the frequency, or by the distance of the last two steps.

    Args:
        store: The store.
        name: Its column of times.
        series: The index of the series of each step.
        steps: The number of each step within its series.
        freq: The frequency of the series, such as "1h" or "1mo".

    Returns:
        Times of the type of the column; null where a series has too few steps to know.
    """
    column, values = store.schema[name], store.column(name)
    begins, ends = store.offsets[series], store.offsets[series + 1]
    lengths = ends - begins
    beyond = steps >= lengths
    found = np.array(values[begins + np.minimum(steps, lengths - 1)])
    known = np.ones(len(found), dtype=bool)
    is_time = column.kind == "timestamp"
    if beyond.any():
        behind, stops, after = np.flatnonzero(beyond), ends[beyond], (steps - lengths + 1)[beyond]
        unit = NANOSECONDS[(column.unit or "ns").partition(",")[0]] if is_time else 1
        frequency = parse_frequency(freq, "freq") if freq is not None and is_time else None
        if frequency is not None and frequency.nanoseconds and frequency.nanoseconds % unit == 0:
            found[behind] = values[stops - 1] + after * (frequency.nanoseconds // unit)
        elif frequency is not None:
            for one in np.unique(series[beyond]).tolist():
                rows = behind[series[behind] == one]
                times = np.asarray(values[store.offsets[one] : store.offsets[one + 1]], dtype=np.int64) * unit
                index, _ = frequency.grid_index(times)
                found[rows] = frequency.times_at(times, index[-1] + steps[rows] - len(times) + 1) // unit
        else:
            has_two = lengths[beyond] >= 2
            last, before = values[stops - 1], values[np.maximum(stops - 2, 0)]
            unknown = ~has_two | ((last == MISSING_TIME) | (before == MISSING_TIME) if is_time else False)
            known[behind[unknown]] = False
            found[behind] = np.where(unknown, found[behind], last + after * (last - before))
    if is_time:
        known &= found != MISSING_TIME
    plain = from_numpy(found)
    kind = plain.type
    if is_time:
        resolution, _, zone = (column.unit or "ns").partition(", ")
        kind = pa.timestamp(resolution, zone or None)
    valid = None if known.all() else pa.py_buffer(np.packbits(known, bitorder="little"))
    return pa.Array.from_buffers(kind, len(plain), [valid, plain.buffers()[1]])


def time_column(store: Store, name: str | None) -> str | None:
    """The column of times of a store: its own, or that of the training store."""
    for one in (store.time, name):
        column = store.schema.get(one) if one is not None else None
        if column is not None and column.level == "step" and column.kind in ("timestamp", "number"):
            return column.name
    return None


def names_of(store: Store, series: Array) -> pa.Array:
    """The name of each series: its key, or its number."""
    column = store.schema[store.key] if store.key is not None else None
    if column is None:
        return from_numpy(series.astype(np.int64))
    if column.texts is not None:
        return from_texts(column.texts).take(from_numpy(series.astype(np.int64))).cast(pa.string())
    return from_numpy(store.column(column.name)[series])


def series_name(store: Store, index: int) -> Any:
    """The name of one series, for messages and to find it in another store."""
    name = store[index][store.key] if store.key is not None else index
    return name.item() if isinstance(name, np.generic) else name

"""Chosen series: a packed store cut to the contexts that were asked for. Columns are read slice by slice, when they are saved."""

from __future__ import annotations

import mmap
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from stoker.encode.sequences.columns import TableColumn, read_column
from stoker.encode.sequences.listed import find_listed
from stoker.encode.sequences.store import lay_texts
from stoker.errors import OptionError
from stoker.store.column import Column
from stoker.store.manifest import NonFinite
from stoker.store.sharing import from_numpy, from_texts, to_numpy
from stoker.store.store import Store
from stoker.store.tally import Tally

Array = npt.NDArray[Any]

_COUNTED_BYTES = 8 << 20
_GATHERED_STEPS = 1 << 18


def choose_series(store: Store, listed: TableColumn) -> Store:
    """The store with the listed series only, in the order of their keys; what has no rows is empty. Columns are read when saved."""
    manifest, key = store.manifest, store.key
    if manifest is None or key is None:
        raise OptionError(f"{store.name} has no key to choose series by.")
    rows, wanted = find_listed(_store_keys(store, key), listed)
    series = np.flatnonzero(rows >= 0)
    found = np.full(len(wanted), -1)
    found[rows[series]] = series
    keys = wanted if isinstance(wanted, pa.Array) else from_numpy(wanted)
    order = pc.array_sort_indices(keys)  # as keys stand in a store: numbers by value, texts by their bytes
    found, keys = found[to_numpy(order)], keys.take(order)
    starts, lengths = store.offsets[found], np.where(found >= 0, store.lengths[found], 0)
    offsets = np.zeros(len(found) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    left_out = store.num_steps - int(offsets[-1])
    note = [f"{left_out:,} rows have a {key} that is not among the contexts, and were left out"] if left_out else []
    columns: dict[str, Any] = {name: ChosenColumn(store.column(name), starts, offsets) for name in store.schema if name != key}
    schema = {name: _counted(store.schema[name], column, offsets) for name, column in columns.items()}
    column = store.schema[key]
    if column.texts is not None:
        schema[key] = replace(column, texts=lay_texts(keys))
    else:
        schema[key], columns[key] = column, to_numpy(keys if column.kind == "number" else keys.view(pa.int64()))
    return Store(
        {name: schema[name] for name in store.schema},
        columns,
        num_series=len(found),
        length=None,
        offsets=offsets,
        name=store.name,
        manifest=msgspec.structs.replace(manifest, notes=[*manifest.notes, *note]),
    )


def _store_keys(store: Store, key: str) -> TableColumn:
    """The keys of a store as they were before it was packed."""
    column = store.schema[key]
    if column.texts is not None:
        return read_column(key, from_texts(column.texts))
    if column.kind != "timestamp":
        return read_column(key, store.column(key))
    unit, _, zone = (column.unit or "ns").partition(", ")
    return read_column(key, from_numpy(store.column(key)).view(pa.timestamp(unit, zone or None)))


class ChosenColumn:
    """A column of another store, some series of it in a new order: read slice by slice, so that it may be larger than memory."""

    ndim = 1

    def __init__(self, values: Array, starts: Array, offsets: Array) -> None:
        self.dtype = values.dtype
        self.shape = (int(offsets[-1]),)
        self._values = values
        self._mapped = _mapping(values)
        self._starts = starts
        self._offsets = offsets

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def nbytes(self) -> int:
        """Size of all values."""
        return len(self) * self.dtype.itemsize

    def __getitem__(self, steps: slice) -> Array:
        start, stop, _ = steps.indices(len(self))
        chosen = np.empty(stop - start, dtype=self.dtype)
        for begin in range(start, stop, _GATHERED_STEPS):
            end = min(begin + _GATHERED_STEPS, stop)
            chosen[begin - start : end - start] = self._values[self._origin(begin, end)]
            if self._mapped is not None:
                self._mapped.madvise(mmap.MADV_DONTNEED)  # or all that was read would count as memory of this process
        return chosen

    def _origin(self, start: int, stop: int) -> Array:
        """Where steps lie in the other store."""
        first = int(np.searchsorted(self._offsets, start, side="right")) - 1
        last = int(np.searchsorted(self._offsets, stop, side="left"))
        bounds = self._offsets[first : last + 1].clip(start, stop)
        shift = self._starts[first:last] - self._offsets[first:last]
        return np.asarray(np.repeat(shift, np.diff(bounds)) + np.arange(start, stop))


def _mapping(values: Array) -> mmap.mmap | None:
    """The map of the file that values lie in, if they do."""
    base: Any = values
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None


def _counted(column: Column, values: ChosenColumn, offsets: Array) -> Column:
    """The column with the counts of what is not finite in the series that are left."""
    tally = Tally()
    rows = max(1, _COUNTED_BYTES // values.dtype.itemsize)
    for start in range(0, len(values), rows) if values.dtype.kind == "f" else ():
        tally.add(values[start : start + rows], first_step=start)
    step = tally.first_step
    series = 0 if step is None else int(np.searchsorted(offsets, step, side="right")) - 1
    first = None if step is None else [series, step - int(offsets[series])]
    return replace(column, nonfinite=NonFinite(nan=tally.nan, inf=tally.inf, first=first))

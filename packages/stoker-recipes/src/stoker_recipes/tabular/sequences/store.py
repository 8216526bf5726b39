"""`pack_sequences`: tables of any size as a store of sequences."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stoker import Resources, pack
from stoker import store as stores
from stoker.errors import BadValueError, OptionError
from stoker.extend import Array, disk
from stoker.store import DEFAULT_MEMORY, Column, Missing, Progress, Store, from_numpy, quiet, to_numpy
from stoker_recipes.tabular.columns import TableColumn, read_column
from stoker_recipes.tabular.sequences.columns import find_listed


def pack_sequences(
    source: Any,
    path: str | os.PathLike[str],
    *,
    key: str,
    columns: str | Sequence[str] | None = None,
    contexts: Any = None,
    time: str | None = None,
    sort: bool = False,
    dtype: str | Mapping[str, str] | None = None,
    missing: Missing = "keep",
    memory: str | int = DEFAULT_MEMORY,
    threads: int | None = None,
    replace: bool = False,
    progress: Progress = quiet,
) -> Store:
    """Pack files or a table of any size into a store, one series per key in the order of the keys, with bounded memory.

    Args:
        source: Files or a table, as for `stoker.pack`.
        path: Folder of the store.
        key: Column with the key of each row.
        columns: Columns of values. Default: all but the key.
        contexts: Keys of the series, or a file or table with a column of the key's name. The store has exactly these series: those
            without rows are empty; rows of other keys are left out, and a note of the store reports their number. Other columns
            of the file or table are stored too, with one value per series; strings become categories. Default: all.
        time: Column that orders the rows of a key, as for `stoker.pack`. Default: the order of the input.
        sort: Sort by `time` instead of rejecting unsorted or equal times.
        dtype: Types of columns, as for `stoker.pack`.
        missing: How to treat missing values, as for `stoker.pack`.
        memory: Memory limit of the whole process.
        threads: Number of threads. Default: the cores of this process.
        replace: Replace a store at `path`; without it, a store there is an error.
        progress: Is called with the phase, its share, and the rows so far.

    Returns:
        The store.

    Raises:
        OptionError: An option is invalid, or a column does not exist.
        BadValueError: A value cannot be read, or a context is listed twice.
        StoreExistsError: There is a store at `path`, and `replace` is False.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = pack_sequences({"user": [9, 7, 9], "item": [3, 1, 4]}, f"{folder}/events.stoker", key="user")
        ...     [(int(series["user"]), series["item"].tolist()) for series in store]
        [(7, [1]), (9, [3, 4])]
    """
    target = disk.check_path(path)

    def pack_to(folder: Path, *, replace: bool) -> Store:
        try:
            return pack(
                source, folder, series=key, time=time, sort=sort, columns=columns, dtype=dtype, missing=missing,
                resources=Resources(memory=memory, threads=threads), replace=replace, progress=progress,
            )  # fmt: skip
        except (BadValueError, OptionError) as error:  # `pack` calls the key `series`
            raise type(error)(re.sub(r"^series=", "key=", str(error))) from None

    if contexts is None:
        return pack_to(target, replace=replace)

    listed, facts = _listed(contexts, key)
    find_listed(listed, listed)  # raises at once where a context is listed twice
    pa.default_memory_pool().release_unused()  # else it adds to the memory of the pack
    stores.check_target(target, replace=replace)  # before a long pack
    with disk.scratch_folder(disk.beside(target, ".{}.all-keys")) as scratch:
        packed = pack_to(scratch / "store", replace=True)  # only a killed run of this function can have left a store there
        chosen = choose_series(packed, listed, facts)
        pa.default_memory_pool().release_unused()
        return chosen.save(target, replace=replace)


def _listed(contexts: Any, key: str) -> tuple[TableColumn, pa.Table | None]:
    """The contexts, from memory or from the files that hold them, and what else is known of each."""
    is_path = isinstance(contexts, str | os.PathLike)
    if not is_path and not isinstance(contexts, Mapping) and not hasattr(contexts, "columns"):
        return read_column("contexts", contexts), None
    sources = stores.find_sources(contexts, table=True)
    names = sources[0].schema().names
    for source in sources:
        if key not in source.schema().names:
            known = ", ".join(source.schema().names[:20])
            raise OptionError(f"{source.label} has no column {key!r} with contexts; it has {known}.")
    table = stores.read_table(sources)
    column = table.column(key)
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    return read_column("contexts", column), table.drop_columns([key]) if len(names) > 1 else None


# ---- chosen series: a packed store cut to the requested contexts; columns are read slice by slice, when they are saved ----

_COUNTED_BYTES = 8 << 20
_GATHERED_STEPS = 1 << 18


def choose_series(store: Store, listed: TableColumn, facts: pa.Table | None = None) -> Store:
    """The store with the listed series only, in the order of their keys; those without rows are empty.

    `facts` has a row for each listed series, whose values become columns of the series.
    """
    manifest, key = store.manifest, store.key
    if manifest is None or key is None:
        raise OptionError(f"{store.name} has no key column to choose series by.")
    rows, wanted = find_listed(_store_keys(store, key), listed)
    series = np.flatnonzero(rows >= 0)
    places = np.full(len(wanted), -1)
    places[rows[series]] = series
    keys = wanted if isinstance(wanted, pa.Array) else from_numpy(wanted)
    order = pc.array_sort_indices(keys)  # the order of keys in a store: numbers by value, strings by bytes
    places, keys = places[to_numpy(order)], keys.take(order)
    starts, lengths = store.offsets[places], np.where(places >= 0, store.lengths[places], 0)
    offsets = np.zeros(len(places) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    left_out = store.num_steps - int(offsets[-1])
    note = [f"{left_out:,} rows have a {key} that is not among the contexts, and were left out"] if left_out else []
    columns: dict[str, Any] = {name: ChosenColumn(store.column(name), starts, offsets) for name in store.schema if name != key}
    schema = {name: _counted(store.schema[name], column, offsets) for name, column in columns.items()}
    for fact in stores.encode_table(facts, {}, "the contexts") if facts is not None else ():
        name, field = fact.field.name, fact.field
        if name in store.schema:
            note.append(f"column {name!r} of the contexts has the name of a column of the rows, and was left out")
            continue
        columns[name] = fact.take(to_numpy(order).astype(np.int64))
        tally = stores.NonFiniteCount()
        tally.add(columns[name], first_step=0)
        texts = stores.Texts.of(fact.texts) if fact.texts is not None else None
        schema[name] = Column(
            name=name, dtype=field.dtype, level="series", kind=field.kind, unit=field.unit, width=fact.width, texts=texts,
            missing=fact.missing, nonfinite=tally.at(None),
        )  # fmt: skip
    column = store.schema[key]
    if column.texts is not None:
        schema[key] = replace(column, texts=stores.lay_texts(keys))
    else:
        schema[key], columns[key] = column, to_numpy(keys if column.kind == "number" else keys.view(pa.int64()))
    return Store(
        {name: schema[name] for name in [*store.schema, *(name for name in schema if name not in store.schema)]},
        columns,
        num_series=len(places),
        length=None,
        offsets=offsets,
        name=store.name,
        manifest=msgspec.structs.replace(manifest, notes=[*manifest.notes, *note]),
    )


def _store_keys(store: Store, key: str) -> TableColumn:
    """The keys of a store as they were before it was packed."""
    column = store.schema[key]
    if column.texts is not None:
        return read_column(key, stores.from_texts(column.texts))
    if column.kind != "timestamp":
        return read_column(key, store.column(key))
    unit, _, zone = (column.unit or "ns").partition(", ")
    return read_column(key, from_numpy(store.column(key)).view(pa.timestamp(unit, zone or None)))


class ChosenColumn:
    """Some series of a column of another store, in a new order; read slice by slice, so it may be larger than memory."""

    ndim = 1

    def __init__(self, values: Array, starts: Array, offsets: Array) -> None:
        self.dtype = values.dtype
        self.shape = (int(offsets[-1]),)
        self.nbytes = self.shape[0] * self.dtype.itemsize
        self._values, self._starts, self._offsets = values, starts, offsets
        base: Any = values
        while isinstance(base, np.ndarray | memoryview):
            base = base.base if isinstance(base, np.ndarray) else base.obj
        self._mapped = base if isinstance(base, mmap.mmap) else None  # the memory map of the file of the values

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, steps: slice) -> Array:
        start, stop, _ = steps.indices(len(self))
        chosen = np.empty(stop - start, dtype=self.dtype)
        for begin in range(start, stop, _GATHERED_STEPS):
            end = min(begin + _GATHERED_STEPS, stop)
            first = int(np.searchsorted(self._offsets, begin, side="right")) - 1
            last = int(np.searchsorted(self._offsets, end, side="left"))
            bounds = self._offsets[first : last + 1].clip(begin, end)
            shift = self._starts[first:last] - self._offsets[first:last]
            origin = np.repeat(shift, np.diff(bounds)) + np.arange(begin, end)  # the steps of the other store
            chosen[begin - start : end - start] = self._values[origin]
            if self._mapped is not None:
                self._mapped.madvise(mmap.MADV_DONTNEED)  # else all that was read counts as memory of this process
        return chosen


def _counted(column: Column, values: ChosenColumn, offsets: Array) -> Column:
    """The column with its counts of NaN and Inf in the chosen series."""
    tally = stores.NonFiniteCount()
    rows = max(1, _COUNTED_BYTES // values.dtype.itemsize)
    for start in range(0, len(values), rows) if values.dtype.kind == "f" else ():
        tally.add(values[start : start + rows], first_step=start)
    step = tally.first_step
    series = 0 if step is None else int(np.searchsorted(offsets, step, side="right")) - 1
    first = None if step is None else [series, step - int(offsets[series])]
    return replace(column, nonfinite=stores.NonFinite(nan=tally.nan, inf=tally.inf, first=first))

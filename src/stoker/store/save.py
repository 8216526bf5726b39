"""Saving: a store in memory, or another one, written as it is: same columns, same series, same order, whatever their width."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.store import manifest as manifests
from stoker.store.column import Column, Texts
from stoker.store.columnfile import ColumnFile
from stoker.store.manifest import BLOCK_BYTES, ColumnEntry, Manifest, Shard, SourceEntry, Text
from stoker.store.packing.debris import make_work
from stoker.store.store import WORK_NAME, Store
from stoker.store.target import replace_store

Array = npt.NDArray[Any]


def save_store(store: Store, folder: Path, *, note: str, replace: bool = False) -> None:
    """Write all columns to `folder`, which becomes a store or stays as it was. `note` says where the values are from."""
    replace_store(folder, [store.path], lambda: _write(store, folder, note), replace=replace)


def _write(store: Store, folder: Path, note: str) -> Manifest:
    make_work(folder)
    uniform = store.uniform_length is not None
    source = store.manifest
    return Manifest(
        format="stoker",
        version=manifests.VERSION,
        digest="",
        num_series=len(store),
        num_steps=store.num_steps,
        length=store.uniform_length,
        offsets=None if uniform else _shard(folder, np.ascontiguousarray(store.offsets)),
        key=store.key,
        time=store.time,
        columns=[_entry(folder, store, column) for column in store.schema.values()],
        notes=source.notes if source else [],
        sources=source.sources if source else [SourceEntry(name=note, num_bytes=0, num_rows=store.num_steps, xxh3=None)],
    )


def _entry(folder: Path, store: Store, column: Column) -> ColumnEntry:
    return ColumnEntry(
        name=column.name,
        level=column.level,
        kind=column.kind,
        unit=column.unit,
        values=_shard(folder, store.column(column.name)) if column.dtype is not None else None,
        texts=_texts(folder, column.texts) if column.texts is not None else None,
        missing=column.missing,
        nonfinite=column.nonfinite,
    )


def _texts(folder: Path, texts: Texts) -> Text:
    return Text(utf8=_shard(folder, texts.utf8), offsets=_shard(folder, texts.offsets))


def _shard(folder: Path, values: Array) -> Shard:
    width = values.shape[1] if values.ndim == 2 else None
    file = ColumnFile.create(folder / WORK_NAME / "final.column", values.dtype, width)
    try:
        for block in _blocks(values):
            file.append(block)
        return file.seal(folder)
    finally:
        file.close()


def _blocks(values: Array) -> Iterator[Array]:
    """Pieces of some megabytes, so that no more of a mapped column is in memory at once."""
    rows = max(1, BLOCK_BYTES // max(1, values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)))
    for start in range(0, len(values), rows):
        yield np.ascontiguousarray(values[start : start + rows])

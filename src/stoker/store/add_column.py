"""Write a store that is another store with one more column."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stoker._types import Array
from stoker.errors import OptionError, StoreDamagedError
from stoker.store import manifest as manifests
from stoker.store.manifest import BLOCK_BYTES, ColumnEntry, Manifest, NonFinite, Shard
from stoker.store.shards import ColumnFile, NonFiniteCount, map_shard
from stoker.store.store import WORK_NAME, Store, open_store
from stoker.store.writer import make_work, replace_store


def add_column(
    store: Store, path: Path, name: str, parts: Iterator[Array], *, dtype: str, width: int | None, note: str, replace: bool = False
) -> Store:
    """Write a copy of a store on disk to `path`, with one more column of one row per step.

    The copy replaces a store at `path` in one step: until its manifest is written, the store that was there stays as it was.

    Args:
        store: The store to copy. Its shards are hashed again, so that damage is not copied.
        path: Folder of the new store.
        name: Name of the new column.
        parts: The rows of the column, piece by piece, so that memory is bounded.
        dtype: Type of the column, such as "<f4".
        width: Numbers per row; None for one.
        note: Note that the new store keeps about the column.
        replace: Replace a store at `path`; without it, a store there is an error.

    Returns:
        The new store.

    Raises:
        OptionError: The store is in memory, or has a column of this name.
        StoreDamagedError: A shard has changed since it was written.
        StoreExistsError: There is a store at `path`, and `replace` is False.
    """
    manifest, source = store.manifest, store.path
    if source is None or manifest is None:
        raise OptionError(f"{store.name} is in memory: pack it first, stoker.pack(store, path).")
    if name in store.schema:
        raise OptionError(f"{store.name} has a column {name!r} already. Choose another name.")

    def write() -> Manifest:
        make_work(path)
        _copy_shards(source, manifest, path)
        tally = NonFiniteCount()
        shard = _write_shard(path, "final.added", np.dtype(dtype), width, _counted(parts, tally))
        column = ColumnEntry(
            name=name,
            level="step",
            kind="number",
            unit=None,
            values=shard,
            texts=None,
            missing=0,
            nonfinite=NonFinite(nan=tally.nan, inf=tally.inf, first=_position(tally.first_step, store.offsets)),
        )
        return msgspec.structs.replace(manifest, columns=[*manifest.columns, column], notes=[*manifest.notes, note])

    replace_store(path, [source], write, replace=replace)
    return open_store(path)


def _counted(parts: Iterator[Array], tally: NonFiniteCount) -> Iterator[Array]:
    """The parts, with their NaN and Inf counted on the way."""
    done = 0
    for part in parts:
        tally.add(part, first_step=done)
        done += len(part)
        yield part


def _copy_shards(source: Path, manifest: Manifest, folder: Path) -> None:
    for i, shard in enumerate({shard.file: shard for shard in manifests.shards(manifest)}.values()):
        values = map_shard(source, shard, "a column of the store")
        width = shard.shape[1] if len(shard.shape) == 2 else None
        rows_each = max(1, BLOCK_BYTES // (values.itemsize * (width or 1)))
        parts = (values[start : start + rows_each] for start in range(0, len(values), rows_each))
        if _write_shard(folder, f"final.{i}", values.dtype, width, parts) != shard:
            raise StoreDamagedError(f"{source / shard.file} has changed since it was written. Run `stoker verify {source}`.")


def _write_shard(folder: Path, name: str, dtype: np.dtype[Any], width: int | None, parts: Iterator[Array]) -> Shard:
    column = ColumnFile.create(folder / WORK_NAME / name, dtype, width)
    try:
        for part in parts:
            column.append(part)
        return column.seal(folder)
    finally:
        column.close()


def _position(step: int | None, offsets: Array) -> list[int] | None:
    """The series of a step, and the step within it."""
    if step is None:
        return None
    series = int(np.searchsorted(offsets, step, side="right")) - 1
    return [series, step - int(offsets[series])]

"""Saving: a store of bars becomes a store of bars and their features, one wide column more.

All columns stay, so that labels and features lie in the same rows. The law is that of a pack: there is the whole new store or
the old one, and replacing the manifest is the one commit point.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stoker import files
from stoker.encode.indicators.bars import Bars, read_bars
from stoker.encode.indicators.batch import PIECE, SHARE, Share, advance, shares
from stoker.encode.indicators.compiling import compile_spec
from stoker.encode.indicators.engine import Engine
from stoker.encode.indicators.program import Program
from stoker.encode.indicators.spec import Spec, parse_spec
from stoker.errors import OptionError, StoreDamaged
from stoker.store import manifest as manifests
from stoker.store.columnfile import ColumnFile
from stoker.store.manifest import BLOCK_BYTES, ColumnEntry, Manifest, NonFinite, Shard
from stoker.store.packing.debris import make_work
from stoker.store.packing.options import parse_threads
from stoker.store.shard import map_shard
from stoker.store.store import WORK_NAME, Store, open_store
from stoker.store.tally import Tally
from stoker.store.target import replace_store

Array = npt.NDArray[Any]
Progress = Callable[[str, float, int], None]
"""Gets the phase, the share of it that is done, and the bars so far."""

_LONG = 4 * SHARE  # series that are longer go to the disk piece by piece


def _quiet(phase: str, share: float, bars: int) -> None:
    return None


def write_features(
    bars: Store | str | os.PathLike[str],
    spec: Any,
    path: str | os.PathLike[str],
    *,
    name: str = "features",
    compat: str | None = None,
    threads: int | None = None,
    replace: bool = False,
    progress: Progress = _quiet,
) -> Store:
    """Write the store `path`: that of the bars, and a float32 column `name` as wide as the spec has features.

    Memory is bounded whatever the length of the series. A note of the store says what the numbers of a row are. With `replace`, a
    store that is at `path` already is replaced; without it, that is an error.
    """
    folder, num_threads = files.check_path(path), parse_threads(threads)
    store = bars if isinstance(bars, Store) else open_store(bars)
    wanted = parse_spec(spec, compat=compat)
    if store.path is None or store.manifest is None:
        raise OptionError(f"{store.name} is in memory: pack it first, stoker.pack(store, path).")
    if name in store.schema:
        raise OptionError(f"{store.name} has a column {name!r} already. Choose another name for the features.")
    manifest, source, table = store.manifest, store.path, read_bars(store, wanted)

    def write() -> Manifest:
        make_work(folder)
        _copy_shards(source, manifest, folder)
        column = _write_column(table, wanted, folder, name, num_threads, progress)
        columns, notes = [*manifest.columns, column], [*manifest.notes, _note(name, wanted)]
        return msgspec.structs.replace(manifest, columns=columns, notes=notes)

    replace_store(folder, [source], write, replace=replace)
    return open_store(folder)


def _note(name: str, spec: Spec) -> str:
    arithmetic = f", compat {spec.compat}" if spec.compat else ""
    return f"{name}: {', '.join(spec.names)} (spec {spec.content_hash}{arithmetic}, emit_from {spec.emit_from})"


def _copy_shards(source: Path, manifest: Manifest, folder: Path) -> None:
    """Copy what the bars consist of; the hash of each block is taken anew, so damage is not carried on."""
    for i, shard in enumerate({shard.file: shard for shard in manifests.shards(manifest)}.values()):
        values = map_shard(source, shard, "a column of the bars")
        width = shard.shape[1] if len(shard.shape) == 2 else None
        rows_each = max(1, BLOCK_BYTES // (values.itemsize * (width or 1)))
        parts = (values[start : start + rows_each] for start in range(0, len(values), rows_each))
        if _write_shard(folder, f"final.{i}", values.dtype, width, parts) != shard:
            raise StoreDamaged(f"{source / shard.file} has changed since it was written. Run `stoker verify {source}`.")


def _write_shard(folder: Path, name: str, dtype: np.dtype[Any], width: int | None, parts: Iterator[Array]) -> Shard:
    column = ColumnFile.create(folder / WORK_NAME / name, dtype, width)
    try:
        for part in parts:
            column.append(part)
        return column.seal(folder)
    finally:
        column.close()


def _write_column(bars: Bars, spec: Spec, folder: Path, name: str, threads: int, progress: Progress) -> ColumnEntry:
    tally = Tally()
    done = 0

    def parts() -> Iterator[Array]:
        nonlocal done
        for rows in _rows_in_order(bars, compile_spec(spec), threads):
            tally.add(rows, first_step=done)
            done += len(rows)
            yield rows
            progress("features", done / max(bars.num_rows, 1), done)

    shard = _write_shard(folder, "final.features", np.dtype("<f4"), len(spec.features), parts())
    return ColumnEntry(
        name=name,
        level="step",
        kind="number",
        unit=None,
        values=shard,
        texts=None,
        missing=0,
        nonfinite=NonFinite(nan=tally.nan, inf=tally.inf, first=_place(tally.first_step, bars.offsets)),
    )


def _place(step: int | None, offsets: Array) -> list[int] | None:
    """The series of a step, and the step within it."""
    if step is None:
        return None
    series = int(np.searchsorted(offsets, step, side="right")) - 1
    return [series, step - int(offsets[series])]


def _rows_in_order(bars: Bars, program: Program, threads: int) -> Iterator[Array]:
    """The features of all bars; short series are computed ahead in threads, long ones piece by piece."""

    def compute(share: Share) -> Array:
        out = np.empty((share[1] - share[0], program.num_features), dtype=np.float32)
        advance(Engine(program), bars, *share, out)
        return out

    ahead: deque[Future[Array]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="stoker-features")
    try:
        for share in shares(bars.offsets):
            if share[1] - share[0] <= _LONG:
                ahead.append(pool.submit(compute, share))
            while ahead and (len(ahead) > threads or share[1] - share[0] > _LONG):
                yield ahead.popleft().result()
            if share[1] - share[0] > _LONG:
                yield from _pieces(Engine(program), bars, share)
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _pieces(engine: Engine, bars: Bars, share: Share) -> Iterator[Array]:
    for start in range(*share, PIECE):
        stop = min(start + PIECE, share[1])
        out = np.empty((stop - start, engine.program.num_features), dtype=np.float32)
        advance(engine, bars, start, stop, out)
        yield out

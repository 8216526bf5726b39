"""Packing: the way from raw files to a store, all or nothing.

    plan      look at all sources, settle columns and types
    read      chunks -> blocks -> runs, sorted by key
    merge     several runs -> one
    seal      the run's files get their final names
    commit    the manifest is replaced: from here on the store is the new one

Until the commit an existing store stays as it was. A pack that is killed goes on from its journal.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker import files
from stoker.errors import DiskError, ManifestInvalid, OptionError, SourceTooLarge, StoreNotFound
from stoker.store import manifest as manifests
from stoker.store.manifest import Manifest
from stoker.store.packing.debris import WORK_FILE, remove_debris
from stoker.store.packing.options import DEFAULT_MEMORY, Missing, Options, default_threads, parse_bytes, parse_dtypes, parse_names
from stoker.store.packing.packing import Packing, quiet
from stoker.store.packing.plan import make_plan
from stoker.store.packing.state import Progress
from stoker.store.sources.dialect import Dialect
from stoker.store.sources.find import find_sources
from stoker.store.store import MANIFEST_NAME, WORK_NAME, Store, open_store, read_manifest

__all__ = ["pack"]


def pack(
    source: Any,
    path: str | os.PathLike[str],
    *,
    series: str | None = None,
    time: str | None = None,
    sort: bool = False,
    wide: bool = False,
    columns: str | Sequence[str] | None = None,
    dtype: str | Mapping[str, str] | type | None = None,
    segment: int | None = None,
    missing: Missing = "keep",
    delimiter: str | None = None,
    quote: str = '"',
    escape: str | None = None,
    header: bool | None = None,
    skip: int = 0,
    null: str | Sequence[str] = (),
    decimal: str = ".",
    encoding: str = "utf-8",
    time_format: str | None = None,
    memory: str | int = DEFAULT_MEMORY,
    threads: int | None = None,
    progress: Progress = quiet,
) -> Store:
    """Pack files, a pattern, a folder or a table in memory into a store at `path`, and open it.

    `series` names the column whose values group rows into series; without it each file is one series, or, where
    columns hold lists, each row. `time` names the column that must rise within a series; `sort` sorts by it instead.
    `wide` makes each numeric column of each file a series of its own. `segment` cuts series into pieces of at most
    that many steps. `missing` says what becomes of missing values: `keep` them as NaN, stop with an `error`, fill
    forward (`ffill`), or `drop` their rows. The options from `delimiter` to `time_format` are for tables in text.

    A store that is there already is replaced in one step, at the very end.
    """
    default_dtype, dtypes = parse_dtypes(dtype)
    options = Options(
        series=series,
        time=time,
        sort=sort,
        wide=wide,
        columns=parse_names(columns),
        dtype=default_dtype,
        dtypes=dtypes,
        segment=segment,
        missing=missing,
        dialect=Dialect(
            delimiter=delimiter,
            quote=quote,
            escape=escape,
            header=header,
            skip=skip,
            null=(null,) if isinstance(null, str) else tuple(null),
            decimal=decimal,
            encoding=encoding,
            time_format=time_format,
        ),
        memory_bytes=parse_bytes(memory),
        threads=threads if threads is not None else default_threads(),
    )
    with _enough_memory(options):
        return _pack(source, Path(path), options, progress)


def _pack(source: Any, folder: Path, options: Options, progress: Progress) -> Store:
    table = options.series is not None or options.time is not None
    plan = make_plan(find_sources(source, dialect=options.dialect, table=table, wide=options.wide), options)
    with files.naming(folder):
        _refuse_target(folder, [source.path if isinstance(source, Store) else None, *(one.path for one in plan.sources)])
    with _frugal_arrow(options), _new_folders(folder), files.Lock(folder):
        try:
            manifest = Packing(plan, folder, progress).run()
            _commit(folder, manifest)
            remove_debris(folder)
            files.remove_folder(folder / WORK_NAME)
        except Exception:
            # What failed leaves nothing behind. (Ctrl-C is no Exception: its work stays, and the next pack goes on with it.)
            with contextlib.suppress(DiskError):
                _clean_up(folder)
            raise
    return open_store(folder)


@contextlib.contextmanager
def _enough_memory(options: Options) -> Iterator[None]:
    """Say in a sentence that memory ran out where no reader could say over what."""
    try:
        yield
    except MemoryError as error:
        raise SourceTooLarge(
            f"the pack was given {options.memory_bytes >> 20:,} MB by --memory, but the system refused to give it that much. "
            "Lower --memory, use --threads 1, or leave large columns out with --columns."
        ) from error


@contextlib.contextmanager
def _frugal_arrow(options: Options) -> Iterator[None]:
    """Where memory is scarce, have Arrow give freed memory back at once: its own pools keep tens of megabytes."""
    if options.memory_bytes >= parse_bytes(DEFAULT_MEMORY):
        yield
        return
    pool = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(pool)


@contextlib.contextmanager
def _new_folders(folder: Path) -> Iterator[None]:
    """Make a folder and those above it; after an error, the new ones that are empty go again."""
    absent = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        files.make_folder(folder)
        yield
    except Exception:
        for path in absent:
            with contextlib.suppress(DiskError), files.naming(path):
                files.disk.rmdir(path)
        raise


def _refuse_target(folder: Path, sources: Sequence[Path | None]) -> None:
    """A store may replace a store, never something else."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file, but a store is a folder. Choose another name.")
    for source in sources:
        if source is not None and source.resolve() == folder.resolve():
            raise OptionError(f"{folder} is both the source and the store. Choose another name for the store.")
    foreign = sorted(_foreign(folder)) if folder.is_dir() else []
    if foreign:
        raise OptionError(
            f"{folder} is no store and not empty (it holds {foreign[0]!r}). Choose another folder, so that nothing is lost."
        )


def _foreign(folder: Path) -> Iterator[str]:
    """What a pack could not have made, but would be in its way: beside a valid manifest, only what is in the work folder."""
    work = folder / WORK_NAME
    if work.is_dir() and not work.is_symlink():
        yield from (f"{WORK_NAME}/{entry.name}" for entry in work.iterdir() if not WORK_FILE.fullmatch(entry.name))
    elif work.exists():
        yield WORK_NAME
    names = {entry.name for entry in folder.iterdir()}
    try:
        read_manifest(folder)
        return
    except StoreNotFound:
        ours = {".lock", WORK_NAME, MANIFEST_NAME + ".tmp"}
    except ManifestInvalid:
        # A damaged manifest may be replaced, but a file that only has its name may not: a store has shards.
        shards = any(files.SHARD_NAME.fullmatch(name) for name in names)
        ours = {".lock", WORK_NAME, MANIFEST_NAME + ".tmp", *([MANIFEST_NAME] if shards else [])}
    yield from (name for name in names - ours if not files.SHARD_NAME.fullmatch(name))


def _commit(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest. The shards' names are made durable first, so that a manifest never names what is not there."""
    with files.naming(folder):
        files.disk.sync_folder(folder)
    files.write_file(folder / MANIFEST_NAME, manifests.dump(manifest))


def _clean_up(folder: Path) -> None:
    """After an error: the store as it was before, or no folder at all."""
    files.remove_folder(folder / WORK_NAME)
    # If it was the sync behind the commit that failed, the old manifest may come back: its shards go only when it cannot.
    with files.naming(folder):
        files.disk.sync_folder(folder)
    remove_debris(folder)
    if {entry.name for entry in folder.iterdir()} <= {".lock"}:
        files.remove_folder(folder)

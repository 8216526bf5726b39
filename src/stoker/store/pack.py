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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stoker import files
from stoker.errors import DiskError, OptionError, StoreNotFound
from stoker.store import manifest as manifests
from stoker.store.manifest import Manifest
from stoker.store.packing.options import DEFAULT_MEMORY, Missing, Options, default_threads, parse_bytes, parse_dtypes, parse_names
from stoker.store.packing.packing import Packing, Progress, quiet
from stoker.store.packing.plan import make_plan
from stoker.store.sources.dialect import Dialect
from stoker.store.sources.find import find_sources
from stoker.store.sources.source import Source
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
    folder = Path(path)
    sources = find_sources(source, dialect=options.dialect, table=series is not None or time is not None, wide=wide)
    plan = make_plan(sources, options)
    _refuse_target(folder, plan.sources)
    files.make_folder(folder)
    with files.Lock(folder):
        try:
            _remove_debris(folder)
            manifest = Packing(plan, folder, progress).run()
            _commit(folder, manifest)
        except Exception:
            # What failed leaves nothing behind. (Ctrl-C is no Exception: its work stays, and the next pack goes on with it.)
            with contextlib.suppress(DiskError):
                _clean_up(folder)
            raise
        _remove_debris(folder)
        files.remove_folder(folder / WORK_NAME)
    return open_store(folder)


def _refuse_target(folder: Path, sources: Sequence[Source]) -> None:
    """A store may replace a store, never something else."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file, but a store is a folder. Choose another name.")
    for source in sources:
        if source.path is not None and source.path.resolve() == folder.resolve():
            raise OptionError(f"{folder} is both the source and the store. Choose another name for the store.")
    if not folder.is_dir() or (folder / MANIFEST_NAME).exists() or (folder / WORK_NAME).is_dir():
        return
    foreign = sorted(entry.name for entry in folder.iterdir() if not _is_ours(entry.name))
    if foreign:
        raise OptionError(
            f"{folder} is no store and not empty (it holds {foreign[0]!r}). Choose another folder, so that nothing is lost."
        )


def _is_ours(name: str) -> bool:
    return bool(files.SHARD_NAME.fullmatch(name)) or name in (".lock", WORK_NAME, MANIFEST_NAME, MANIFEST_NAME + ".tmp")


def _remove_debris(folder: Path) -> None:
    """Remove shards that the manifest does not name. Never touches a file that a pack could not have made."""
    try:
        manifest = read_manifest(folder)
    except StoreNotFound:
        named = set()
    else:
        named = {shard.file for shard in manifests.shards(manifest)}
    for entry in sorted(folder.iterdir()):
        if files.SHARD_NAME.fullmatch(entry.name) and entry.name not in named:
            files.remove_file(entry)
    files.remove_file(folder / (MANIFEST_NAME + ".tmp"))


def _commit(folder: Path, manifest: Manifest) -> None:
    """Replace the manifest. The shards' names are made durable first, so that a manifest never names what is not there."""
    with files.naming(folder):
        files.disk.sync_folder(folder)
    files.write_file(folder / MANIFEST_NAME, manifests.dump(manifest))


def _clean_up(folder: Path) -> None:
    """After an error: the store as it was before, or no folder at all."""
    files.remove_folder(folder / WORK_NAME)
    _remove_debris(folder)
    if {entry.name for entry in folder.iterdir()} <= {".lock"}:
        files.remove_folder(folder)

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
from typing import Any

import pyarrow as pa

from stoker._disk import check_path
from stoker.errors import SourceTooLargeError
from stoker.store.formats.csv import Dialect
from stoker.store.pack.options import DEFAULT_MEMORY, Missing, PackOptions, parse_bytes, parse_dtypes, parse_names, parse_threads
from stoker.store.pack.packer import Packer, Progress, quiet
from stoker.store.store import Store, open_store

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
    replace: bool = False,
    progress: Progress = quiet,
) -> Store:
    """Pack files, a pattern, a folder or a table in memory into a store at `path`, and open it.

    `series` names the column whose values group rows into series; without it each file is one series, or, where
    columns hold lists, each row. `time` names the column that must rise within a series; `sort` sorts by it instead.
    `wide` makes each numeric column of each file a series of its own. `segment` cuts series into pieces of at most
    that many steps. `missing` says what becomes of missing values: `keep` them as NaN, stop with an `error`, fill
    forward (`ffill`), or `drop` their rows. The options from `delimiter` to `time_format` are for tables in text.

    With `replace`, a store that is there already is replaced in one step, at the very end; without it, that is an error. A pack
    that was killed resumes when it is called again.
    """
    folder = check_path(path)
    default_dtype, dtypes = parse_dtypes(dtype)
    options = PackOptions(
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
        threads=parse_threads(threads),
    )
    with _enough_memory(options):
        packer = Packer(source, folder, options, progress)
        with _frugal_arrow(options):
            packer.run(replace=replace)
    return open_store(folder)


@contextlib.contextmanager
def _enough_memory(options: PackOptions) -> Iterator[None]:
    """Say in a sentence that memory ran out where no reader could say over what."""
    try:
        yield
    except MemoryError as error:
        raise SourceTooLargeError(
            f"the pack may use {options.memory_bytes >> 20:,} MB (memory=), but the system did not provide that much. "
            "Pass a smaller memory=, threads=1, or leave large columns out with columns=[...]."
        ) from error


@contextlib.contextmanager
def _frugal_arrow(options: PackOptions) -> Iterator[None]:
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

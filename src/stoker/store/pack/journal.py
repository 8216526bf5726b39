"""The journal of a pack: its state between two blocks, so that a pack that was killed resumes from there.

The journal is written without waiting for the disk. That is safe because a resumed pack trusts nothing in it: the journal
carries its own hash, and the files it names are hashed again before they are used. A `fingerprint` of sources and options ties
a journal to its pack.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

import stoker
from stoker._disk import write_file
from stoker.errors import SourceChangedError
from stoker.store.formats.base import DataSource
from stoker.store.manifest import VERSION
from stoker.store.pack.merge import CursorMark
from stoker.store.pack.plan import PackPlan
from stoker.store.pack.sorted_runs import RunMark
from stoker.store.shards import Mark

_NAME = "journal"


class MergeMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An unfinished merge: which runs, into which run, and how far."""

    first: int
    """Index of the first run that is merged."""
    count: int
    out: RunMark
    cursors: list[CursorMark]


class Journal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a pack between two blocks. The format of the journal file: fields must not change."""

    fingerprint: str
    settled: bool
    """Whether the types were found by reading all rows."""
    source: int
    row: int
    position: int
    source_rows: list[int]
    """Rows of the sources that were read to their end."""
    read: bool
    """Whether all sources are read."""
    missing: dict[str, int]
    wide_time: tuple[int, int | float] | None
    categories: dict[str, list[Mark]]
    runs: list[RunMark]
    merged: int
    """How many of the runs are results of the current round of merges."""
    merge: MergeMark | None


def save_journal(folder: Path, journal: Journal) -> None:
    """Replace the journal."""
    body = msgspec.json.encode(journal)
    write_file(folder / _NAME, xxhash.xxh3_128_hexdigest(body).encode() + b"\n" + body, durable=False)


def load_journal(folder: Path, fingerprint: str) -> Journal | None:
    """The journal of an earlier process, if it is undamaged and belongs to the same pack."""
    try:
        data = (folder / _NAME).read_bytes()
    except OSError:
        return None
    digest, _, body = data.partition(b"\n")
    if digest.decode("ascii", "replace") != xxhash.xxh3_128_hexdigest(body):
        return None
    try:
        journal = msgspec.json.decode(body, type=Journal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return journal if journal.fingerprint == fingerprint else None


def stat_source(source: DataSource) -> tuple[int, int] | None:
    """Size and modification time of a source, to detect changes; None in memory."""
    if source.path is None:
        return None
    with _still_there(source):
        stats = [path.stat() for path in _files_of(source.path)]
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)


@contextlib.contextmanager
def _still_there(source: DataSource) -> Iterator[None]:
    """Report errors as changes: the source could be read when the plan was made."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise SourceChangedError(f"{source.label} cannot be read any more: {reason}. Pack again when it is back.") from error


def _files_of(path: Path) -> list[Path]:
    # The lock of a store holds a process id, which is not data.
    return sorted(one for one in path.rglob("*") if one.is_file() and one.name != ".lock") if path.is_dir() else [path]


def hash_source(source: DataSource, stopping: threading.Event) -> str | None:
    """Hash all bytes of a source, for the manifest; ends early, with a meaningless hash, once the pack is `stopping`."""
    if source.path is None:
        return None
    hasher = xxhash.xxh3_128()
    buffer = bytearray(1 << 20)
    with _still_there(source):
        for path in _files_of(source.path):
            with path.open("rb", buffering=0) as file:
                while (count := file.readinto(buffer)) and not stopping.is_set():
                    hasher.update(memoryview(buffer)[:count])
    return hasher.hexdigest()


def fingerprint(plan: PackPlan, stats: list[tuple[int, int] | None]) -> str:
    """What must be equal for a journal to belong to this pack: all that determines the result, and nothing else."""
    options = {name: value for name, value in vars(plan.options).items() if name not in ("memory_bytes", "threads", "dialect")}
    sources = [(source.name, ascii(source.path), stat) for source, stat in zip(plan.sources, stats, strict=True)]
    parts = [VERSION, stoker.__version__, options, vars(plan.options.dialect), sources]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, enc_hook=str))

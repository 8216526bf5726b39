"""Identity: whether sources and options are those of an earlier look, told by sizes, times and hashes."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import xxhash

import stoker
from stoker.errors import SourceChanged
from stoker.store.manifest import VERSION
from stoker.store.packing.plan import Plan
from stoker.store.sources.source import Source


def stat_source(source: Source) -> tuple[int, int] | None:
    """Size and latest change of a source, to notice if it is written to; None in memory."""
    if source.path is None:
        return None
    with _still_there(source):
        stats = [path.stat() for path in _files_of(source.path)]
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)


@contextlib.contextmanager
def _still_there(source: Source) -> Iterator[None]:
    """It was there when the plan was made, so whatever the system refuses now is a change."""
    try:
        yield
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise SourceChanged(f"{source.label} cannot be read any more: {reason}. Pack again when it is back.") from error


def _files_of(path: Path) -> list[Path]:
    # The lock of a store holds the number of a process, which is not data.
    return sorted(one for one in path.rglob("*") if one.is_file() and one.name != ".lock") if path.is_dir() else [path]


def hash_source(source: Source, stopping: threading.Event) -> str | None:
    """Hash all bytes of a source, for the manifest; ends early, with a hash of nothing, once the pack is `stopping`."""
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


def fingerprint(plan: Plan, stats: list[tuple[int, int] | None]) -> str:
    """What must be equal for a journal to be of this pack: all that shapes the result, and nothing else."""
    options = {name: value for name, value in vars(plan.options).items() if name not in ("memory_bytes", "threads", "dialect")}
    sources = [(source.name, ascii(source.path), stat) for source, stat in zip(plan.sources, stats, strict=True)]
    parts = [VERSION, stoker.__version__, options, vars(plan.options.dialect), sources]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, enc_hook=str))

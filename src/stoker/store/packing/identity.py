"""Identity: whether sources and options are those of an earlier look, told by sizes, times and hashes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import xxhash

import stoker
from stoker.store.manifest import VERSION
from stoker.store.packing.plan import Plan
from stoker.store.sources.source import Source


def stat_source(source: Source) -> tuple[int, int] | None:
    """Size and latest change of a source, to notice if it is written to; None in memory."""
    if source.path is None:
        return None
    paths = _files_of(source.path)
    stats = [path.stat() for path in paths]
    return sum(stat.st_size for stat in stats), max((stat.st_mtime_ns for stat in stats), default=0)


def _files_of(path: Path) -> list[Path]:
    return sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]


def hash_source(source: Source) -> str | None:
    """Hash all bytes of a source, for the manifest."""
    if source.path is None:
        return None
    hasher = xxhash.xxh3_128()
    buffer = bytearray(1 << 20)
    for path in _files_of(source.path):
        with path.open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                hasher.update(memoryview(buffer)[:count])
    return hasher.hexdigest()


def fingerprint(plan: Plan, stats: list[tuple[int, int] | None]) -> str:
    """What must be equal for a journal to be of this pack: all that shapes the result, and nothing else."""
    options = {name: value for name, value in vars(plan.options).items() if name not in ("memory_bytes", "threads", "dialect")}
    sources = [(source.name, str(source.path), stat) for source, stat in zip(plan.sources, stats, strict=True)]
    parts = [VERSION, stoker.__version__, options, vars(plan.options.dialect), sources]
    return xxhash.xxh3_128_hexdigest(msgspec.json.encode(parts, enc_hook=str))

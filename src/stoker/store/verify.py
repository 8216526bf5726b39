"""Verifying: every byte of a store is read and compared with the hash that was taken when it was written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stoker.errors import StoreDamaged
from stoker.store import manifest as manifests
from stoker.store.manifest import BLOCK_BYTES, Manifest, Shard
from stoker.store.shard import damaged_blocks, name_of
from stoker.store.store import Store, manifest_stamp, open_store

Report = Callable[[int, int], None]
"""Gets bytes checked and bytes in all."""


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was checked; there is no such value for a store that is damaged."""

    num_shards: int
    num_bytes: int
    digest: str


def verify(path: str | os.PathLike[str], *, report: Report | None = None) -> Verified:
    """Read every byte of a store; raises `StoreDamaged` with shard, column and rows of all damage."""
    folder = Path(path)
    while True:
        stamp = manifest_stamp(folder)
        try:
            return _verify(open_store(folder), folder, report)
        except StoreDamaged:
            if manifest_stamp(folder) == stamp:
                raise  # nobody replaced the store while it was read: it is damaged


def _verify(store: Store, folder: Path, report: Report | None) -> Verified:
    manifest = store.manifest
    if manifest is None:
        raise RuntimeError("a store on disk has a manifest")
    total = sum(shard.values_bytes for shard in manifests.shards(manifest))
    done = 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if report is not None:
            report(done, total)

    damages = [damage for what, shard in _named_shards(manifest) for damage in _damages(store, folder, what, shard, count)]
    damages += list(_structure(store, manifest))
    if damages:
        shown = "; ".join(damages[:10]) + (f"; and {len(damages) - 10:,} more" if len(damages) > 10 else "")
        raise StoreDamaged(f"{folder} is damaged: {shown}. Restore these files from a copy, or pack the store again.")
    return Verified(num_shards=len(list(manifests.shards(manifest))), num_bytes=total, digest=manifest.digest)


def _named_shards(manifest: Manifest) -> Iterator[tuple[str, Shard]]:
    if manifest.offsets is not None:
        yield "the offsets", manifest.offsets
    for column in manifest.columns:
        if column.values is not None:
            yield f"column {column.name!r}", column.values
        if column.texts is not None:
            yield f"texts of column {column.name!r}", column.texts.utf8
            yield f"text offsets of column {column.name!r}", column.texts.offsets


def _damages(store: Store, folder: Path, what: str, shard: Shard, count: Callable[[int], None]) -> Iterator[str]:
    if shard.file != name_of(shard.dtype, shard.shape, shard.blocks):
        yield f"{shard.file} ({what}) has a name that does not fit its hashes"
    row_bytes = max(shard.values_bytes // max(shard.shape[0], 1), 1)
    try:
        blocks = list(damaged_blocks(folder, shard, count))
    except FileNotFoundError:
        yield f"{shard.file} ({what}) is missing"
        return
    for block in blocks:
        first = block * BLOCK_BYTES // row_bytes
        last = min((block + 1) * BLOCK_BYTES // row_bytes, shard.shape[0]) - 1
        yield f"{shard.file} ({what}) differs from its hash in rows {first:,} to {max(first, last):,}"


def _structure(store: Store, manifest: Manifest) -> Iterator[str]:
    """What hashes cannot show: a store that was written with offsets that do not rise, or codes without a text."""
    if manifest.offsets is not None and not _rises(store.offsets):
        yield "the offsets fall somewhere"
    for name, column in store.schema.items():
        if column.texts is None:
            continue
        if not _rises(column.texts.offsets):
            yield f"the text offsets of column {name!r} fall somewhere"
        if column.kind == "category":
            codes = store.column(name)
            if len(codes) and (int(codes.min()) < -1 or int(codes.max()) >= len(column.texts)):
                yield f"column {name!r} holds a code that has no text"


def _rises(offsets: np.ndarray[tuple[int, ...], np.dtype[np.int64]], part: int = 1 << 20) -> bool:
    """Whether offsets never fall; part by part, so that 48 million need no second copy."""
    return all(
        bool((offsets[i + 1 : i + part + 1] >= offsets[i : i + part][: len(offsets) - i - 1]).all())
        for i in range(0, len(offsets), part)
    )

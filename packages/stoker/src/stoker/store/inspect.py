"""`inspect` summarises a store from its manifest and offsets; `verify` reads and hashes every byte."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stoker._text import is_url
from stoker.errors import StoreDamagedError
from stoker.store import manifest as manifests
from stoker.store.appended import AppendedStore
from stoker.store.manifest import BLOCK_BYTES, Shard, SourceEntry
from stoker.store.opening import open_store, steadily
from stoker.store.shards import Column, damaged_blocks, name_of
from stoker.store.store import Store

_PART = 1 << 22
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, kw_only=True)
class LengthBin:
    """The number of series whose length is from `low` to `high`, both included."""

    low: int
    high: int
    num_series: int


@dataclass(frozen=True, kw_only=True)
class StoreSummary:
    """What `stoker inspect` shows."""

    path: str
    digest: str | None
    num_series: int
    num_steps: int
    num_bytes: int
    key: str | None
    time: str | None
    shortest: int
    median: float
    longest: int
    histogram: list[LengthBin]
    columns: list[Column]
    notes: list[str]
    sources: list[SourceEntry]
    num_appends: int = 0
    """One more with each append."""
    freq: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        values = {name: getattr(self, name) for name in "path digest num_series num_steps num_bytes key time".split()}
        values["lengths"] = {name: getattr(self, name) for name in ("shortest", "median", "longest")}
        values["lengths"]["histogram"] = [asdict(length_bin) for length_bin in self.histogram]
        values["columns"] = [
            {
                "name": c.name,
                "type": c.label,
                "level": c.level,
                "missing": missing_values(c),
                "inf": c.nonfinite.inf,
                "first_nonfinite": c.nonfinite.first,
                "categories": len(c.texts) if c.kind == "category" and c.texts is not None else None,
            }
            for c in self.columns
        ]
        if self.num_appends:
            values["num_appends"] = self.num_appends
        values |= {"freq": self.freq} if self.freq is not None else {}
        return values | {"notes": self.notes, "sources": msgspec.to_builtins(self.sources)}


def missing_values(column: Column) -> int:
    """Return how many values of a column are missing in the store: NaN in floats, -1 in categories, NaT in times, no string in texts."""
    if column.kind in ("number", "bfloat16"):
        return column.nonfinite.nan  # integers cannot be missing
    return column.missing


def inspect(store: Store | str | os.PathLike[str]) -> StoreSummary:
    """Summarise a store: sizes, columns, missing values, lengths of series, sources. Reads the offsets, never the values.

    Args:
        store: a store, the path of one, or its URL.

    Returns:
        A summary; `to_dict` gives plain values for JSON.

    Raises:
        StoreNotFoundError: there is no store at the path.
        ManifestError: the manifest breaks a rule of the format.
        StoreDamagedError: a shard is missing, or has the wrong size.

    Example:
        >>> summary = inspect(Store.from_arrays(x=[[1.0, 2.0], [3.0]]))
        >>> summary.num_series, summary.num_steps, summary.longest
        (2, 3, 2)
    """
    opened = store if isinstance(store, Store) else open_store(store)
    counts = _count_lengths(opened)
    notes, sources = opened._origins()
    return StoreSummary(
        path=opened.name,
        digest=opened.digest,
        num_series=len(opened),
        num_steps=opened.num_steps,
        num_bytes=opened.num_bytes,
        key=opened.key,
        time=opened.time,
        shortest=min(counts, default=0),
        median=_median(counts),
        longest=max(counts, default=0),
        histogram=_histogram(counts),
        columns=list(opened.schema.values()),
        notes=notes,
        sources=sources or [],
        num_appends=len(opened.lines) if isinstance(opened, AppendedStore) else 0,
        freq=opened.freq,
    )


def _count_lengths(store: Store) -> dict[int, int]:
    """The number of series of each length, computed in parts so that 48 million series need no large array."""
    if store.uniform_length is not None:
        return {store.uniform_length: len(store)} if len(store) else {}
    counts: dict[int, int] = {}
    for start in range(0, len(store), _PART):
        values, numbers = np.unique(np.diff(store.offsets[start : start + _PART + 1]), return_counts=True)
        for value, number in zip(values.tolist(), numbers.tolist(), strict=True):
            counts[value] = counts.get(value, 0) + number
    return dict(sorted(counts.items()))


def _median(counts: dict[int, int]) -> float:
    """The middle length, or the mean of the two middle ones."""
    total = sum(counts.values())
    if not total:
        return 0.0
    ends, lengths = np.cumsum(list(counts.values())), list(counts)
    low, high = (lengths[int(np.searchsorted(ends, middle, side="right"))] for middle in ((total - 1) // 2, total // 2))
    return (low + high) / 2


def _histogram(counts: dict[int, int], num_bins: int = 12) -> list[LengthBin]:
    """Bins of growing width where lengths span more than one power of ten."""
    if not counts:
        return []
    low, high = min(counts), max(counts) + 1
    edges = list(range(low, high + 1))
    if high - low > num_bins:
        spread = np.geomspace if high > 10 * max(low, 1) else np.linspace
        edges = [low, *np.unique(np.round(spread(max(low, 1), high, num_bins + 1)).astype(int)).tolist()[1:]]
    return [
        LengthBin(low=begin, high=end - 1, num_series=sum(count for length, count in counts.items() if begin <= length < end))
        for begin, end in itertools.pairwise(edges)
    ]


# Verify

Report = Callable[[int, int], None]  # gets the bytes checked so far, and their total


@dataclass(frozen=True, kw_only=True)
class VerifyResult:
    """What `verify` checked in a store without damage."""

    num_shards: int
    num_bytes: int
    digest: str


def verify(path: str | os.PathLike[str], *, report: Report | None = None) -> VerifyResult:
    """Read every byte of a store, all that was appended to it included, and compare it with the hashes of its manifests.

    A store at a URL is read from object storage, whatever a local cache holds of it.

    Args:
        path: the folder of the store, or its URL.
        report: called with the bytes checked so far, and their total.

    Returns:
        The number of shards and bytes checked, and the digest of the store.

    Raises:
        StoreNotFoundError: there is no store at the path.
        ManifestError: the manifest breaks a rule of the format.
        StoreDamagedError: shards differ from their hashes; the message names shard, column and rows.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store = Store.from_arrays(x=[1.0, 2.0]).save(folder + "/a.stoker")
        ...     verify(folder + "/a.stoker").num_bytes
        16
    """
    if is_url(path):
        from stoker.store.remote import open_remote

        remote = open_remote(str(path))
        return _verify(remote.name, [("", remote, remote.damaged_blocks)], "Upload the store again.", report)
    folder = Path(path)
    return steadily(folder, lambda: _verify_local(folder, report))


def _verify_local(folder: Path, report: Report | None) -> VerifyResult:
    store = open_store(folder)
    stores = [store.base, *store.parts] if isinstance(store, AppendedStore) else [store]
    places = [(part.path, part) for part in stores if part.path is not None]
    parts = [
        ("" if place == folder else f"{place.relative_to(folder)}/", part, partial(damaged_blocks, place)) for place, part in places
    ]
    return _verify(str(folder), parts, "Restore these files from a copy, or pack the store again.", report)


FindDamage = Callable[[Shard, Callable[[int], None]], Iterator[int]]
"""Yields the numbers of the damaged blocks of a shard, and reports the bytes that it reads."""


def _verify(name: str, parts: Sequence[tuple[str, Store, FindDamage]], advice: str, report: Report | None) -> VerifyResult:
    """Check the shards of a store and of what was appended to it: the path of each part, the part, and how its blocks are read."""
    shards = [
        (path, find_damage, what, shard)
        for path, part, find_damage in parts
        for what, shard in (manifests.named_shards(part.manifest) if part.manifest is not None else ())
    ]
    total, done = sum(shard.values_bytes for _, _, _, shard in shards), 0

    def count(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        if report is not None:
            report(done, total)

    damages = [path + damage for path, find_damage, what, shard in shards for damage in _damages(what, shard, find_damage, count)]
    for path, part, _ in parts:
        if not (damages and part.is_remote):  # its codes and offsets are read through a cache, which must be right for that
            damages += [path + damage for damage in _structure(part)]
    if damages:
        shown = "; ".join(damages[:10]) + (f"; and {len(damages) - 10:,} more" if len(damages) > 10 else "")
        raise StoreDamagedError(f"{name} is damaged: {shown}. {advice}", path=name)
    return VerifyResult(num_shards=len(shards), num_bytes=total, digest=parts[0][1].digest or "")


def _damages(what: str, shard: Shard, find_damage: FindDamage, count: Callable[[int], None]) -> Iterator[str]:
    if shard.file != name_of(shard.dtype, shard.shape, shard.blocks):
        yield f"{shard.file} ({what}) has a name that does not fit its hashes"
    try:
        blocks = list(find_damage(shard, count))
    except FileNotFoundError:
        yield f"{shard.file} ({what}) is missing"
        return
    row_bytes = max(shard.values_bytes // max(shard.shape[0], 1), 1)
    for block in blocks:
        first = block * BLOCK_BYTES // row_bytes
        last = min((block + 1) * BLOCK_BYTES // row_bytes, shard.shape[0]) - 1
        yield f"{shard.file} ({what}) differs from its hash in rows {first:,} to {max(first, last):,}"


def _structure(store: Store) -> Iterator[str]:
    """What hashes cannot show: offsets that decrease, or codes without a category."""
    if store.uniform_length is None and not _rises(store.offsets):
        yield "the offsets decrease somewhere"
    for name, column in store.schema.items():
        if column.texts is None:
            continue
        if not _rises(column.texts.offsets):
            yield f"the text offsets of column {name!r} decrease somewhere"
        if column.kind == "category":
            pieces = (codes for codes in store._pieces(name, _PIECE_BYTES) if len(codes))
            if any(int(codes.min()) < -1 or int(codes.max()) >= len(column.texts) for codes in pieces):
                yield f"column {name!r} holds a code without a category"


def _rises(offsets: np.ndarray[tuple[int, ...], np.dtype[np.int64]], part: int = 1 << 20) -> bool:
    """Whether offsets never decrease; in parts, so that 48 million need no second copy."""
    return all(
        bool((offsets[i + 1 : i + part + 1] >= offsets[i : i + part][: len(offsets) - i - 1]).all())
        for i in range(0, len(offsets), part)
    )

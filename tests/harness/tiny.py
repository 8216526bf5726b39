"""Tiny stores: small and valid, written without a pack, with one column of every kind and their values at hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from stoker import Store, _disk
from stoker.store import NonFinite, Texts, open_store
from stoker.store import manifest as manifests
from stoker.store.manifest import MANIFEST_NAME, ColumnEntry, Manifest, Shard, SourceEntry, Text
from stoker.store.shards import MISSING_CODE, MISSING_TIME, ColumnFile, Kind, Level

Array = npt.NDArray[Any]

CATEGORIES = ["", "bear", "Zürich", "牛"]


@dataclass(frozen=True, kw_only=True)
class TinyStore:
    """A store on disk and what is in it."""

    path: Path
    lengths: list[int]
    manifest: Manifest
    values: dict[str, Array]
    """Flat, as the shards hold them; no entry for texts."""
    texts: dict[str, list[str]]
    """Categories and texts."""

    def open(self) -> Store:
        """Open it anew."""
        return open_store(self.path)


@dataclass(frozen=True)
class _Made:
    """A column before it is written."""

    level: Level
    kind: Kind
    values: Array | None
    unit: str | None = None
    texts: list[str] | None = None
    missing: int = 0


def _seen(rng: np.random.Generator, steps: int) -> _Made:
    values = rng.integers(-(2**40), 2**40, steps)
    values[:1] = MISSING_TIME
    return _Made("step", "timestamp", values, unit="ns", missing=min(steps, 1))


def _mood(rng: np.random.Generator, steps: int) -> _Made:
    codes = rng.integers(MISSING_CODE, len(CATEGORIES), steps).astype("<i4")
    return _Made("step", "category", codes, texts=CATEGORIES, missing=int((codes == MISSING_CODE).sum()))


def _when(rng: np.random.Generator, steps: int) -> _Made:
    return _Made("step", "timestamp", 1_700_000_000_000_000 + np.cumsum(rng.integers(1, 10**9, steps)), unit="us, UTC")


def _brief(rng: np.random.Generator, steps: int) -> _Made:
    return _Made("step", "bfloat16", (rng.normal(size=steps).astype("<f4").view("<u4") >> 16).astype("<u2"))


_MAKERS: dict[str, Callable[[np.random.Generator, int, int, int], _Made]] = {
    "price": lambda rng, steps, series, width: _Made("step", "number", rng.normal(size=steps)),
    "wide": lambda rng, steps, series, width: _Made("step", "number", rng.normal(size=(steps, width)).astype("<f4")),
    "brief": lambda rng, steps, series, width: _brief(rng, steps),
    "flag": lambda rng, steps, series, width: _Made("step", "number", rng.random(steps) < 0.5),
    "when": lambda rng, steps, series, width: _when(rng, steps),
    "seen": lambda rng, steps, series, width: _seen(rng, steps),
    "span": lambda rng, steps, series, width: _Made("step", "duration", rng.integers(-1000, 1000, steps), unit="ms"),
    "mood": lambda rng, steps, series, width: _mood(rng, steps),
    "label": lambda rng, steps, series, width: _Made("series", "number", rng.integers(-(2**62), 2**62, series)),
    "symbol": lambda rng, steps, series, width: _Made(
        "series", "text", None, texts=sorted(f"{'ÅbZ'[i % 3]}{i:03}" for i in range(series))
    ),
}
COLUMNS = tuple(_MAKERS)


def tiny_store(
    folder: Path,
    *,
    lengths: Sequence[int] = (3, 0, 5, 1),
    columns: Sequence[str] = COLUMNS,
    uniform: bool = False,
    width: int = 3,
    seed: int = 0,
) -> TinyStore:
    """Write a small store into a new folder: the same arguments, the same bytes.

    price float64 · wide float32[width] · brief bfloat16 · flag bool · when timestamp[us, UTC], the time · seen timestamp[ns],
    the first missing · span duration[ms] · mood category, some missing · label int64 a series · symbol text a series, the key.
    With `uniform`, for equal lengths, the store has a length and no offsets.
    """
    if uniform and len(set(lengths)) != 1:
        raise ValueError(f"a uniform store has series of one length; found lengths {list(lengths)}.")
    _disk.make_folder(folder)
    rng = np.random.default_rng(seed)
    made = {name: _MAKERS[name](rng, sum(lengths), len(lengths), width) for name in columns}
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype("<i8")
    manifest = Manifest(
        format="stoker",
        version=manifests.VERSION,
        digest="",
        num_series=len(lengths),
        num_steps=sum(lengths),
        length=lengths[0] if uniform else None,
        offsets=None if uniform else write_shard(folder, offsets),
        key="symbol" if "symbol" in made else None,
        time="when" if "when" in made else None,
        columns=[_entry(folder, name, column) for name, column in made.items()],
        notes=["made for a test"],
        sources=[SourceEntry(name="table in memory", num_bytes=0, num_rows=sum(lengths), xxh3=None)],
    )
    _disk.disk.sync_folder(folder)  # before the manifest names them, the names of the shards must last
    _disk.write_file(folder / MANIFEST_NAME, manifests.dump(manifest))
    return TinyStore(
        path=folder,
        lengths=list(lengths),
        manifest=manifests.load((folder / MANIFEST_NAME).read_bytes(), "manifest"),
        values={name: column.values for name, column in made.items() if column.values is not None},
        texts={name: column.texts for name, column in made.items() if column.texts is not None},
    )


def seal_manifest(tree: Mapping[str, Any]) -> bytes:
    """Serialise a manifest given as plain dicts and lists, with the digest that fits, whatever else it says."""
    zeros = "0" * 32
    text = msgspec.json.format(msgspec.json.encode({**tree, "digest": zeros}), indent=1) + b"\n"
    return text.replace(zeros.encode(), xxhash.xxh3_128_hexdigest(text).encode(), 1)


def edit_manifest(folder: Path, change: Callable[[Any], object]) -> None:
    """Change a manifest and seal it again, so that only the rules behind its digest can find the change."""
    tree = json.loads((folder / MANIFEST_NAME).read_bytes())
    change(tree)
    (folder / MANIFEST_NAME).unlink()
    (folder / MANIFEST_NAME).write_bytes(seal_manifest(tree))


def write_shard(folder: Path, values: Array) -> Shard:
    """Write one array as a shard; the folder is not synced."""
    width = values.shape[1] if values.ndim == 2 else None
    column = ColumnFile.create(folder / "shard.tmp", values.dtype, width)
    try:
        column.append(np.ascontiguousarray(values))
        return column.seal(folder)
    finally:
        column.close()


def _entry(folder: Path, name: str, column: _Made) -> ColumnEntry:
    texts = None
    if column.texts is not None:
        laid_out = Texts.of(column.texts)
        texts = Text(utf8=write_shard(folder, laid_out.utf8), offsets=write_shard(folder, laid_out.offsets))
    return ColumnEntry(
        name=name,
        level=column.level,
        kind=column.kind,
        unit=column.unit,
        values=write_shard(folder, column.values) if column.values is not None else None,
        texts=texts,
        missing=column.missing,
        nonfinite=NonFinite(nan=0, inf=0, first=None),
    )

"""The data of a training: a store, Time-MoE's own folders in place, or a file that is packed first - as series, numbered through.

It stands before everything else of the recipe. The law: values are those of the files, in their own type, and are not copied;
the order of the series is the same on every machine.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

import stoker
from stoker.errors import OptionError, SourceEmpty, SourceNotFound
from stoker.store import find_time_moe, map_time_moe

Array = npt.NDArray[Any]

MANIFEST, PACKED = "manifest.json", ".stoker"
TABLES = (".csv", ".tsv", ".txt")
LOOKED_AT = 1 << 30
"""Points of files that are used in place: seconds, where a whole corpus would be hours."""
_LOOK = 1 << 22
_SHOWN = 8


@dataclass(frozen=True, kw_only=True)
class Flat:
    """One column of a store: series end to end."""

    store: stoker.Store
    column: str

    @property
    def values(self) -> Array:
        """All points, in the type that they are stored in."""
        return self.store.column(self.column)

    def __len__(self) -> int:
        return len(self.store)


class Corpus:
    """All series of some columns, numbered from 0 in the order of files and columns."""

    def __init__(self, flats: Sequence[Flat], *, name: str) -> None:
        if not sum(map(len, flats)):
            raise SourceEmpty(f"{name} has no series. Pack or fetch it again.")
        self.flats = list(flats)
        self.name = name
        self.firsts: Array = np.concatenate([[0], np.cumsum([len(flat) for flat in flats])]).astype(np.int64)
        """The number of the first series of each flat, and behind the last."""
        offsets = [flat.store.offsets for flat in flats]
        # A single store is not copied: it may have many millions of series.
        self.begins: Array = offsets[0][:-1] if len(flats) == 1 else np.concatenate([one[:-1] for one in offsets])
        self.ends: Array = offsets[0][1:] if len(flats) == 1 else np.concatenate([one[1:] for one in offsets])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    @property
    def num_points(self) -> int:
        """Points of all series."""
        return sum(flat.store.num_steps for flat in self.flats)

    @property
    def lengths(self) -> Array:
        """Points of each series. Computed on each call."""
        return np.asarray(self.ends - self.begins)

    def flat_of(self, series: Array) -> Array:
        """Which flat each of these series is in."""
        return np.searchsorted(self.firsts, series, side="right") - 1

    def series(self, number: int) -> Array:
        """The points of one series, as a view."""
        flat = self.flats[int(self.flat_of(np.array(number)))]
        return flat.values[int(self.begins[number]) : int(self.ends[number])]

    def series_name(self, number: int) -> str:
        """The name of a series: its key or file, and its column where there are several; else its number."""
        at = int(self.flat_of(np.array(number)))
        flat = self.flats[at]
        names = _names(flat.store)
        several = len({one.column for one in self.flats}) > 1
        key = str(names[number - int(self.firsts[at])]) if names is not None else None
        if key is None:
            return flat.column if several and len(flat) == 1 else f"{flat.column}:{number}" if several else str(number)
        return f"{key}:{flat.column}" if several else key

    def find_nonfinite(self) -> tuple[int, int] | None:
        """The first point that is missing or infinite: its series, and its place there.

        Stores have it counted. Of what lies in files of others, `LOOKED_AT` points are looked at.
        """
        left = LOOKED_AT
        for first, flat in zip(self.firsts.tolist(), self.flats, strict=False):
            if flat.values.dtype.kind != "f":
                continue
            if flat.store.digest:
                place = flat.store.schema[flat.column].nonfinite.first
                if place is not None:
                    return first + place[0], place[1]
                continue
            for begin in range(0, min(len(flat.values), left), _LOOK):
                bad = ~np.isfinite(flat.values[begin : begin + _LOOK])
                if bad.any():
                    at = begin + int(bad.argmax())
                    series = int(np.searchsorted(flat.store.offsets, at, side="right")) - 1
                    return first + series, at - int(flat.store.offsets[series])
            left -= min(len(flat.values), left)
        return None

    def find(self, name: str) -> int:
        """The number of a series by its name, the end of its name behind a colon, or its number."""
        if name.isascii() and name.isdecimal() and int(name) < len(self) and self.series_name(int(name)) == name:
            return int(name)  # series without names, of which there may be many millions
        names = [self.series_name(number) for number in range(len(self))]
        for found in (
            [i for i, one in enumerate(names) if one == name],
            [i for i, one in enumerate(names) if one.endswith(f":{name}")],
        ):
            if len(found) == 1:
                return found[0]
            if found:
                said = ", ".join(repr(names[i]) for i in found[:_SHOWN])
                raise OptionError(f"{self.name} has {len(found):,} series {name!r}: {said}. Give the whole name.")
        if name.isascii() and name.isdecimal() and int(name) < len(self):
            return int(name)
        tails = {one.rpartition(":")[2]: one for one in names}
        near = [tails.get(one, one) for one in difflib.get_close_matches(name, [*tails, *names], n=1)]
        shown = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise OptionError(f"{self.name} has no series {name!r}; it has {shown}.{hint}")

    def only(self, number: int) -> Corpus:
        """One series alone, under its number's name."""
        name = self.series_name(number)
        store = stoker.Store.from_arrays(x=[self.series(number)])
        return Corpus([Flat(store=store, column="x")], name=f"series {name} of {self.name}")

    @cached_property
    def fingerprint(self) -> str:
        """64 bits that change where a series lies elsewhere, and for a packed store with any value."""
        whole = xxhash.xxh3_64()
        for flat in self.flats:
            whole.update(flat.store.digest.encode() if flat.store.digest else np.ascontiguousarray(flat.store.offsets).tobytes())
            whole.update(f"{flat.column} {flat.values.dtype} {len(flat)}".encode())
        return whole.hexdigest()

    def __repr__(self) -> str:
        return f"<corpus {self.name}: {len(self):,} series, {self.num_points:,} points>"


def _names(store: stoker.Store) -> Sequence[Any] | None:
    """What tells the series of a store apart."""
    texts = [column for column in store.schema.values() if column.level == "series" and column.kind == "text"]
    if store.key is not None and store.schema[store.key].level == "series":
        column = store.schema[store.key]
        return column.texts if column.texts is not None else store.column(store.key)  # type: ignore[return-value]
    return texts[0].texts if texts else None


def open_corpus(data: str | os.PathLike[str] | stoker.Store, *, columns: Sequence[str] | None = None) -> Corpus:
    """Open what is named: a store, one of Time-MoE's folders or a tree of them, or a file that `stoker.pack` reads.

    Each column of numbers (or of `columns`) is series of its own. A file is packed beside itself, once: `x.jsonl` to
    `x.jsonl.stoker`, one series a column for tables.
    """
    if isinstance(data, stoker.Store):
        return Corpus(_flats(data, columns), name=data.name)
    path = Path(data)
    if not path.exists():
        raise SourceNotFound(f"{path} does not exist. Give a store, a Time-MoE folder, or a file of series.")
    if path.is_file():
        return Corpus(_flats(_packed(path), columns), name=str(path))
    if (path / MANIFEST).is_file():
        return Corpus(_flats(stoker.open(path), columns), name=str(path))
    stores = [store for folder in find_time_moe(path) for store in map_time_moe(folder)]
    if not stores:
        raise SourceNotFound(
            f"{path} is neither a store nor a Time-MoE folder: there is no meta.json with data-*.bin in it. "
            f'Pack raw files first: stoker pack "{path}/**/*.csv" {path.name}.stoker --wide'
        )
    return Corpus([flat for store in stores for flat in _flats(store, columns)], name=str(path))


def _flats(store: stoker.Store, columns: Sequence[str] | None) -> list[Flat]:
    fits = [
        name
        for name, column in store.schema.items()
        if column.level == "step" and column.kind == "number" and column.width is None and column.dtype is not None
        if column.dtype.kind in "iuf"
    ]
    for name in columns or ():
        if name not in fits:
            raise OptionError(f"{store.name} has no column of numbers {name!r}; it has {', '.join(fits) or 'none'}.")
    wanted = fits if columns is None else list(columns)
    if not wanted:
        raise OptionError(f"{store.name} has no column with one number a step; it has {', '.join(store.schema)}.")
    return [Flat(store=store, column=name) for name in wanted]


def _packed(path: Path) -> stoker.Store:
    """The store beside a file; made where there is none that is newer than the file."""
    target = path.with_name(path.name + PACKED)
    manifest = target / MANIFEST
    ours = False
    if manifest.is_file():
        store = stoker.open(target)
        sources = store.manifest.sources if store.manifest is not None else []
        newer = manifest.stat().st_mtime_ns >= path.stat().st_mtime_ns
        if newer and [one.num_bytes for one in sources] == [path.stat().st_size]:
            return store
        ours = [one.name for one in sources] == [path.name]
    return stoker.pack(path, target, wide=path.suffix.lower() in TABLES, replace=ours)

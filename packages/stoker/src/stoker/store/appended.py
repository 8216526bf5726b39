"""`AppendedStore`: the base of a store and what `stoker.append` has added to it, read as one store.

    manifest.json    the base (the store as it was packed), and how many lines of `parts.jsonl` count
    parts.jsonl      one line per append: the folder of its part, its digest, and the rule by which it is merged
    parts/000002/    what the first append has added: an ordinary store

No list is stored twice, and an append writes only new rows. The parts are mapped when the store is first used, and a column is merged
when it is first read:

    series       the union of the keys; in the order of a full pack
    fragments    runs of rows of base and parts, in the order of the merged column; overlapping times are resolved here
    column       the fragments copied end to end, block by block
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import psutil
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from stoker._disk import open_plain
from stoker._text import readable_bytes
from stoker._types import Array
from stoker.errors import BadValueError, StoreDamagedError, StoreError, StoreNotFoundError
from stoker.store import manifest as manifests
from stoker.store.arrow import fill_null, from_bfloat16, from_numpy, from_texts, lay_texts, to_numpy
from stoker.store.manifest import Manifest, NonFinite, PartList, SourceEntry, manifest_stamp, read_manifest
from stoker.store.shards import MISSING_CODE, MISSING_TIME, Column, NonFiniteCount, missing_value
from stoker.store.store import ColumnsOnUse, Store, map_store
from stoker.store.writer import PART_NAME, PARTS_LIST, PARTS_NAME

Overlap = Literal["error", "replace", "keep"]
Order = Literal["key", "name", "new"]

_UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_BLOCK_BYTES = 16 << 20
_READ_BELOW = 64 << 10  # bytes; smaller shards of parts are read, not mapped
_SHORT_RUN = 32  # rows; shorter fragments are copied by an index, longer ones as slices


class PartLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of `parts.jsonl`.

    order    how its series join those before: "key" by key, sorted; "name" by key, new ones behind; "new" all behind
    overlap  what happens to rows that are not after the last time of their series: there are none, or the new or old ones win
    """

    name: str
    digest: str
    num_series: int
    num_steps: int
    order: Order
    overlap: Overlap
    last_time: int | float | None  # the latest of all series, this part included


def read_parts(folder: Path, manifest: Manifest) -> tuple[list[PartLine], bytes]:
    """The parts of a store, and the lines that list them.

    Raises:
        StoreDamagedError: the list is missing, or is not the one that the manifest was written with.
    """
    if manifest.parts is None:
        return [], b""
    path = folder / PARTS_LIST
    try:
        with os.fdopen(open_plain(path, StoreDamagedError), "rb") as file:
            lines = file.read(manifest.parts.num_bytes)
    except FileNotFoundError:
        raise StoreDamagedError(
            f"{path} is missing: it lists what was appended. Restore the file or pack the store again."
        ) from None
    try:
        parts = [msgspec.json.decode(line, type=PartLine) for line in lines.splitlines()]
    except (msgspec.DecodeError, UnicodeDecodeError):
        parts = []
    if list_entry(parts, lines) != manifest.parts or not all(PART_NAME.fullmatch(part.name) for part in parts):
        raise StoreDamagedError(f"{path} differs from what the manifest expects. Restore the file or pack the store again.")
    return parts, lines


def list_entry(parts: Sequence[PartLine], lines: bytes) -> PartList:
    """What a manifest says about a list of parts."""
    return PartList(count=len(parts), num_bytes=len(lines), xxh3=xxhash.xxh3_128_hexdigest(lines))


# Series and fragments


@dataclass(frozen=True, kw_only=True)
class MergeLayout:
    """Where the series and rows of base and parts are in the merged store. "Added" are all parts, one behind the other."""

    base_series: Array  # merged index of each series of the base
    added_series: Array  # of each series of the parts
    offsets: Array  # of the merged series
    is_added: Array  # of each fragment, in merged order: whether its rows are of the parts
    starts: Array  # its first row, in the base or in the parts
    ends: Array  # where it ends in a merged column
    is_resolved: bool  # whether rows were dropped or moved by an overlap rule

    @property
    def num_series(self) -> int:
        """The number of merged series."""
        return len(self.offsets) - 1


def make_layout(base: Store, parts: list[Store], lines: list[PartLine]) -> MergeLayout:
    """Merge the series of base and parts, and order their rows."""
    base_series, added_series, num_series = _join_series(base, parts, lines)
    series = np.concatenate([base_series, added_series])
    steps_before = np.cumsum([0, *(part.num_steps for part in parts)])
    added_starts = [part.offsets[:-1] + before for part, before in zip(parts, steps_before, strict=False)]
    starts = np.concatenate([base.offsets[:-1], *added_starts])
    lengths = np.concatenate([base.lengths, *(part.lengths for part in parts)])
    is_added = np.arange(len(series)) >= len(base_series)
    order = np.argsort(series, kind="stable")  # rows of the base first, then those of the parts as they came
    fragments = _Fragments(series[order], is_added[order], starts[order], lengths[order])
    rules = np.repeat([line.overlap != "error" for line in lines], [len(part) for part in parts])
    is_resolved = False
    if base.time is not None and rules.any():
        replaces = np.repeat([line.overlap == "replace" for line in lines], [len(part) for part in parts])
        replaces = np.concatenate([np.zeros(len(base_series), dtype=bool), replaces])[order]
        fragments, is_resolved = _resolve(fragments, replaces, base, parts)
    offsets = np.zeros(num_series + 1, dtype=np.int64)
    np.add.at(offsets, fragments.series + 1, fragments.lengths)
    np.cumsum(offsets, out=offsets)
    offsets.flags.writeable = False
    return MergeLayout(
        base_series=base_series,
        added_series=added_series,
        offsets=offsets,
        is_added=fragments.is_added,
        starts=fragments.starts,
        ends=np.cumsum(fragments.lengths),
        is_resolved=is_resolved,
    )


def keys_of(store: Store, name: str | None) -> pa.Array:
    """The keys of all series as an Arrow array; the names of its sources where a part has none."""
    column = store.schema.get(name) if name is not None else None
    if column is None or column.level != "series":
        sources = store.manifest.sources if store.manifest is not None else []
        return from_texts([sources[0].name if sources else ""] * len(store))
    return from_texts(column.texts) if column.texts is not None else from_numpy(store.column(column.name))


def places_of(values: pa.Array, among: pa.Array) -> Array:
    """The place of each value among others; -1 where it is none of them."""
    return to_numpy(fill_null(pc.index_in(values, value_set=among), -1)).astype(np.int64)


def _join_series(base: Store, parts: list[Store], lines: list[PartLine]) -> tuple[Array, Array, int]:
    """The merged index of each series of the base and of the parts, and the number of merged series."""
    num_base, num_added = len(base), sum(len(part) for part in parts)
    if base.key is None or lines[0].order == "new":
        return np.arange(num_base), num_base + np.arange(num_added), num_base + num_added
    known = keys_of(base, base.key)
    keys = pa.concat_arrays([keys_of(part, base.key) for part in parts])
    added = places_of(keys, known)
    new = keys.filter(from_numpy(added < 0)).unique()
    added = np.where(added < 0, num_base + places_of(keys, new), added)
    ranks = np.arange(num_base + len(new))
    if len(new) and lines[0].order == "key":
        ranks[to_numpy(pc.array_sort_indices(pa.concat_arrays([known, new]))).astype(np.int64)] = np.arange(len(ranks))
    return ranks[:num_base], ranks[added], len(ranks)


class _Fragments(NamedTuple):
    """Runs of rows, sorted by merged series."""

    series: Array
    is_added: Array
    starts: Array
    lengths: Array


def _resolve(all_rows: _Fragments, replaces: Array, base: Store, parts: list[Store]) -> tuple[_Fragments, bool]:
    """Order the rows of series whose fragments overlap in time; of equal times the newest or the oldest row stays, as its part says."""
    name = base.time or ""
    times = (base.column(name), _joined(base.schema[name], parts))
    is_filled = all_rows.lengths > 0
    rows = _Fragments(*(values[is_filled] for values in all_rows))
    replaces = replaces[is_filled]
    first, last = (_at(times, rows.is_added, rows.starts + more) for more in (0, rows.lengths - 1))
    clash = (rows.series[1:] == rows.series[:-1]) & ~(last[:-1] < first[1:])
    clashing = np.unique(rows.series[1:][clash])
    if not len(clashing):
        return all_rows, False
    untouched = ~np.isin(rows.series, clashing)
    columns = [[values[untouched]] for values in rows]
    for series in clashing:
        low, high = np.searchsorted(rows.series, [series, series + 1])
        # A row of a part has a number behind those of the base, with a gap so that no run crosses from one to the other.
        gap = base.num_steps + 1
        numbers, moments = np.empty(0, dtype=np.int64), times[0][:0]
        for i in range(low, high):
            begin, count, added = int(rows.starts[i]), int(rows.lengths[i]), int(rows.is_added[i])
            new_numbers = np.arange(begin, begin + count) + (gap if added else 0)
            new_moments = times[added][begin : begin + count]
            if replaces[i]:
                stays = ~np.isin(moments, new_moments)
                numbers, moments = numbers[stays], moments[stays]
            else:
                fresh = ~np.isin(new_moments, moments)
                new_numbers, new_moments = new_numbers[fresh], new_moments[fresh]
            moments = np.concatenate([moments, new_moments])
            order = np.argsort(moments, kind="stable")
            numbers, moments = np.concatenate([numbers, new_numbers])[order], moments[order]
        cuts = np.flatnonzero(np.diff(numbers) != 1) + 1
        begins = numbers[np.concatenate([[0], cuts])]
        lengths = np.diff(np.concatenate([[0], cuts, [len(numbers)]]))
        runs = (np.full(len(begins), series), begins >= gap, np.where(begins >= gap, begins - gap, begins), lengths)
        for column, values in zip(columns, runs, strict=True):
            column.append(values)
    joined = [np.concatenate(column) for column in columns]
    order = np.argsort(joined[0], kind="stable")
    return _Fragments(*(column[order] for column in joined)), True


def _at(values: tuple[Array, Array], is_added: Array, rows: Array) -> Array:
    """Values of the base or of the parts at some rows."""
    out = np.empty(len(rows), dtype=values[0].dtype)
    for added in (False, True):
        here = is_added == added
        out[here] = values[added][rows[here]]
    return out


# Values


def convert_times(values: Array, unit: str | None, target: str | None, what: str) -> Array:
    """Times of one unit in another, exactly; "ns" to "s" is an error where a time is not a whole second."""
    (unit, _, zone), (target, _, target_zone) = (unit or "").partition(", "), (target or "").partition(", ")
    if zone != target_zone:
        raise BadValueError(
            f"{what} has times of zone {zone or 'none'!r}; the store has {target_zone or 'none'!r}. Convert them first."
        )
    if unit == target:
        return values
    have, want = _UNITS[unit], _UNITS[target]
    missing = values == MISSING_TIME
    if want >= have:
        factor = want // have
        fits = np.abs(np.where(missing, 0, values)) <= (2**63 - 1) // factor
        out = values * factor
    else:
        factor = have // want
        fits = values % factor == 0
        out = values // factor
    if not (fits | missing).all():
        raise BadValueError(f"{what} has times that {target!r}, the unit of the store, cannot hold exactly. Round them first.")
    return np.where(missing, MISSING_TIME, out)


def _joined(column: Column, parts: Sequence[Store], codes: Sequence[Array] = ()) -> Array:
    """The values of a column of all parts end to end, as the base stores them; a part without the column has missing values."""
    dtype = column.dtype or np.dtype("<i4")
    out = []
    for i, part in enumerate(parts):
        rows = part.num_steps if column.level == "step" else len(part)
        if column.name not in part.schema:
            out.append(np.full(rows, missing_value(column.kind), dtype=dtype))
            continue
        values, found = part.column(column.name), part.schema[column.name]
        if column.kind in ("timestamp", "duration"):
            values = convert_times(values, found.unit, column.unit, f"column {column.name!r}")
        elif column.kind == "category":
            values = np.where(values < 0, MISSING_CODE, codes[i][values] if len(codes[i]) else MISSING_CODE)
        out.append(values.astype(dtype, copy=False))
    return np.concatenate(out) if out else np.empty(0, dtype=dtype)


class AppendedStore(Store):
    """A store with parts: the same interface, merged when it is first used."""

    def __init__(self, base: Store) -> None:
        if base.path is None or base.manifest is None:
            raise RuntimeError("a store with parts is on disk")
        self.base = base
        self.folder: Path = base.path
        self.name = base.name
        self.path = base.path
        self.manifest = base.manifest
        self._stamp = manifest_stamp(self.folder)
        self._memory: dict[str, Array] = {}

    @cached_property
    def lines(self) -> list[PartLine]:
        """The appends, oldest first."""
        return read_parts(self.folder, self.base.manifest)[0] if self.base.manifest is not None else []

    @cached_property
    def parts(self) -> list[Store]:
        """What was appended, one store each."""
        try:
            return [self._part(line) for line in self.lines]
        except (StoreDamagedError, StoreNotFoundError) as error:
            if manifest_stamp(self.folder) != self._stamp and self._is_gone():
                raise StoreError(f"{self.folder} was compacted or replaced since it was opened. Open it again.") from error
            raise

    def _is_gone(self) -> bool:
        """Whether the store was compacted or replaced: appends only add parts."""
        try:
            now = read_manifest(self.folder)
        except StoreError:
            return True
        plain = [manifests.with_parts(manifest, None).digest for manifest in (now, self.base.manifest) if manifest is not None]
        return now.parts is None or now.parts.count < len(self.lines) or plain[0] != plain[1]

    def _part(self, line: PartLine) -> Store:
        folder = self.folder / PARTS_NAME / line.name
        try:
            part = map_store(folder, read_manifest(folder), read_below=_READ_BELOW)
        except StoreNotFoundError:
            raise StoreDamagedError(f"{folder} is missing: it holds appended rows. Restore it or pack the store again.") from None
        if part.digest != line.digest or (len(part), part.num_steps) != (line.num_series, line.num_steps):
            raise StoreDamagedError(f"{folder} differs from what {PARTS_LIST} expects. Restore it or pack the store again.")
        return part

    @cached_property
    def layout(self) -> MergeLayout:
        """How base and parts are merged."""
        return make_layout(self.base, self.parts, self.lines)

    # What `Store.__init__` sets, on first use.

    @cached_property
    def _offsets(self) -> Array | None:  # type: ignore[override]
        return self.layout.offsets if self._length is None else None

    @cached_property
    def _length(self) -> int | None:  # type: ignore[override]
        lengths = np.diff(self.layout.offsets)
        return int(lengths[0]) if len(lengths) and (lengths == lengths[0]).all() else None

    @cached_property
    def _num_series(self) -> int:  # type: ignore[override]
        return self.layout.num_series

    @cached_property
    def _num_steps(self) -> int:  # type: ignore[override]
        return int(self.layout.offsets[-1])

    @cached_property
    def schema(self) -> Mapping[str, Column]:  # type: ignore[override]
        """The merged columns, by name."""
        return {name: self._column(column) for name, column in self.base.schema.items()}

    @cached_property
    def _values(self) -> Mapping[str, Array]:  # type: ignore[override]
        return ColumnsOnUse(self, (name for name, column in self.schema.items() if column.dtype is not None))

    @cached_property
    def _step_values(self) -> Mapping[str, Array]:  # type: ignore[override]
        return ColumnsOnUse(self, (name for name, column in self.schema.items() if column.level == "step"))

    @property
    def num_new(self) -> tuple[int, int]:
        """Rows that the newest part has added, and series that it has begun."""
        newest, layout = self.parts[-1], self.layout
        earlier = len(layout.added_series) - len(newest)
        known = np.concatenate([layout.base_series, layout.added_series[:earlier]])
        return newest.num_steps, int((~np.isin(layout.added_series[earlier:], known)).sum())

    @property
    def num_bytes(self) -> int:
        """Size of all merged values, offsets and texts."""
        texts = sum(c.texts.utf8.nbytes + c.texts.offsets.nbytes for c in self.schema.values() if c.texts is not None)
        offsets = 0 if self._offsets is None else self._offsets.nbytes
        return sum(self._column_bytes(name) for name in self._values) + texts + offsets

    def _origins(self) -> tuple[list[str], list[SourceEntry] | None]:
        manifests_of_all = [store.manifest for store in (self.base, *self.parts) if store.manifest is not None]
        notes = [note for manifest in manifests_of_all for note in manifest.notes]
        return list(dict.fromkeys(notes)), [source for manifest in manifests_of_all for source in manifest.sources]

    def _column(self, column: Column) -> Column:
        """The schema entry of a merged column."""
        columns = [part.schema[column.name] for part in self.parts if column.name in part.schema]
        texts = column.texts
        if column.kind == "category":
            texts = lay_texts(self._vocabulary(column.name))
        elif column.kind == "text":
            texts = lay_texts(self._strings(column))
        merged = replace(column, texts=texts, missing=column.missing + sum(part.missing for part in columns))
        return merged if column.dtype is None else replace(merged, nonfinite=self._nonfinite(merged))

    def _nonfinite(self, column: Column) -> NonFinite:
        """The counts of base and parts, and the first in merged order."""
        layout, name = self.layout, column.name
        if column.level == "series" or layout.is_resolved:
            if column.dtype is None or (column.dtype.kind != "f" and column.kind != "bfloat16"):
                return NonFinite(nan=0, inf=0, first=None)
            tally, row = NonFiniteCount(), 0
            for piece in self._merge(column, _BLOCK_BYTES):
                tally.add(from_bfloat16(piece) if column.kind == "bfloat16" else piece, first_step=row)
                row += len(piece)
            return tally.at(layout.offsets if column.level == "step" else None)
        counts, places = [], []
        done, first = np.zeros(layout.num_series, dtype=np.int64), 0
        series_of_all = np.concatenate([layout.base_series, layout.added_series])
        for store in (self.base, *self.parts):
            series, count = series_of_all[first : first + len(store)], store.schema[name].nonfinite
            counts.append(count)
            if count.first is not None:
                place = int(series[count.first[0]])
                places.append([place, int(done[place]) + count.first[1]])
            done[series] += store.lengths
            first += len(store)
        return NonFinite(
            nan=sum(count.nan for count in counts), inf=sum(count.inf for count in counts), first=min(places, default=None)
        )

    def _vocabulary(self, name: str) -> pa.Array:
        """The categories in the order of their first rows, as a full pack numbers them."""
        texts = [store.schema[name].texts for store in (self.base, *self.parts) if name in store.schema]
        return pa.concat_arrays([from_texts(text) for text in texts if text is not None]).unique()

    def _winners(self, name: str) -> Array:
        """Of each merged series, which series of base and parts (one behind the other) gives its value: the newest; -1 for none."""
        layout = self.layout
        has = np.repeat([name in part.schema for part in self.parts], [len(part) for part in self.parts])
        out = np.full(layout.num_series, -1, dtype=np.int64)
        out[layout.base_series] = np.arange(len(self.base))
        if name != self.key:
            out[layout.added_series[has]] = len(self.base) + np.flatnonzero(has)
            return out
        new = np.flatnonzero(out[layout.added_series] < 0)  # all others have the same key as in the base
        out[layout.added_series[new]] = len(self.base) + new
        return out

    def _strings(self, column: Column) -> pa.Array:
        """The strings of a text column, one per merged series."""
        arrays = [from_texts(column.texts if column.texts is not None else [])]
        for part in self.parts:
            new = part.schema.get(column.name)
            is_there = new is not None or column.name == self.key
            arrays.append(keys_of(part, column.name) if is_there else from_texts([""] * len(part)))
        winners = self._winners(column.name)
        taken = pa.concat_arrays([*arrays, from_texts([""])])
        return taken.take(from_numpy(np.where(winners < 0, len(taken) - 1, winners)))

    def column(self, name: str) -> Array:
        """The whole merged column; it is kept in memory, and merged only once."""
        if name not in self._memory:
            column = self.schema.get(name) or self._unknown(name)
            if column.dtype is None:
                self._unknown(name)
            needed, free = self._column_bytes(name), psutil.virtual_memory().available
            if needed > free:
                raise StoreError(
                    f"column {name!r} of {self.name} needs {readable_bytes(needed)} of memory, because {len(self.lines):,} appends are "
                    f"merged when it is read, but {readable_bytes(free)} are free. Run `stoker append {self.name} --compact`."
                )
            out = np.empty(self._shape(column), dtype=column.dtype)
            done = 0
            for piece in self._merge(column, _BLOCK_BYTES):
                out[done : done + len(piece)] = piece
                done += len(piece)
            out.flags.writeable = False
            self._memory[name] = out
        return self._memory[name]

    def _pieces(self, name: str, max_bytes: int) -> Iterator[Array]:
        return self._merge(self.schema[name], max_bytes)

    def _shape(self, column: Column) -> tuple[int, ...]:
        rows = self._num_steps if column.level == "step" else self._num_series
        return (rows,) if column.width is None else (rows, column.width)

    def _column_bytes(self, name: str) -> int:
        column = self.schema[name]
        return int(np.prod(self._shape(column))) * (column.dtype.itemsize if column.dtype is not None else 0)

    def _merge(self, column: Column, max_bytes: int) -> Iterator[Array]:
        """A merged column from its first row to its last, in pieces."""
        name, codes = column.name, []
        if column.kind == "category":
            words = self._vocabulary(name)
            for part in self.parts:
                texts = part.schema[name].texts if name in part.schema else None
                codes.append(places_of(from_texts(texts if texts is not None else []), words).astype(np.int32))
        old, new = self.base.column(name), _joined(self.base.schema[name], self.parts, codes)
        if column.level == "series":
            winners = self._winners(name)
            values = np.concatenate([old, new])[np.maximum(winners, 0)]
            if (winners < 0).any():
                values[winners < 0] = missing_value(column.kind)
            yield values
            return
        row_bytes = old.dtype.itemsize * (column.width or 1)
        rows = max(1, max_bytes // row_bytes)
        for start in range(0, self._num_steps, rows):
            yield _copy(self.layout, (old, new), start, min(start + rows, self._num_steps))


def _copy(layout: MergeLayout, values: tuple[Array, Array], start: int, stop: int) -> Array:
    """Rows `start` to `stop` of a merged column."""
    low = int(np.searchsorted(layout.ends, start, side="right"))
    high = int(np.searchsorted(layout.ends, stop, side="left")) + 1
    is_added, starts, ends = layout.is_added[low:high], layout.starts[low:high].copy(), np.minimum(layout.ends[low:high], stop)
    begins = np.concatenate([[layout.ends[low - 1] if low else 0], layout.ends[low : high - 1]])
    starts[0] += start - begins[0]
    begins[0] = start
    lengths = ends - begins
    out = np.empty((stop - start, *values[0].shape[1:]), dtype=values[0].dtype)
    if len(starts) * _SHORT_RUN <= stop - start:
        for added, source, begin, length in zip(is_added.tolist(), starts.tolist(), begins.tolist(), lengths.tolist(), strict=True):
            out[begin - start : begin - start + length] = values[added][source : source + length]
        return out
    rows = np.arange(start, stop) + np.repeat(starts - begins, lengths)
    here = np.repeat(is_added, lengths)
    for added in (False, True):
        out[here == added] = values[added][rows[here == added]]
    return out

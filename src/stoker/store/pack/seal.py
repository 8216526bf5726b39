"""`seal_run`: the one run that is left becomes the shards of a store, and the manifest that names them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from stoker._disk import remove_file
from stoker._types import Array
from stoker.store.interop import from_numpy, from_texts
from stoker.store.manifest import VERSION, ColumnEntry, Manifest, NonFinite, Shard, SourceEntry, Text
from stoker.store.pack.plan import ColumnPlan, PackPlan
from stoker.store.pack.sorted_runs import SortedRun
from stoker.store.pack.values import from_bfloat16
from stoker.store.shards import ColumnFile, NonFiniteCount, TextFile

_PART = 1 << 20  # series handled at a time
_NAMES = 1 << 16  # names made at a time: they may be long


def seal_run(
    run: SortedRun,
    plan: PackPlan,
    *,
    work: Path,
    folder: Path,
    categories: Mapping[str, TextFile],
    missing: Mapping[str, int],
    sources: Sequence[SourceEntry],
    notes: Sequence[str],
) -> Manifest:
    """Move all files of the run to their final names, and return the manifest. The store exists only once that is written."""
    sealer = _Sealer(run, plan, work, folder)
    texts = {name: file.seal(folder) for name, file in categories.items()}
    entries = []
    key = sealer.key_entry(missing)
    if key is not None:
        entries.append(key)
    order = [*plan.schema.names, *(field.name for field in plan.step)]
    for field, file, tally in zip(plan.step, run.step, run.tallies, strict=True):
        entries.append(sealer.entry(field, file.seal(folder), texts.get(field.name), missing, sealer.nonfinite(tally)))
    for field, column in zip(plan.series, run.series, strict=True):
        entries.append(sealer.series_entry(field, column, texts.get(field.name), missing))
    entries.sort(key=lambda entry: -1 if entry.level == "series" and entry is key else order.index(entry.name))
    return Manifest(
        format="stoker",
        version=VERSION,
        digest="",
        num_series=sealer.num_series,
        num_steps=run.num_steps,
        length=sealer.length,
        offsets=sealer.offsets,
        key=key.name if key is not None else None,
        time=plan.options.time if plan.time_index is not None else None,
        columns=entries,
        notes=list(notes),
        sources=list(sources),
    )


class _Sealer:
    """What the columns share: the offsets of the series, cut into segments."""

    def __init__(self, run: SortedRun, plan: PackPlan, work: Path, folder: Path) -> None:
        self._run = run
        self._plan = plan
        self._work = work
        self._folder = folder
        self._segment = plan.options.segment
        self._num_repeated = 0
        self.num_series = sum(int(self._pieces(counts).sum()) for _, counts in self._counts())
        self.length = self._uniform_length()
        self._offsets_file = self._write_offsets() if self.length is None else None
        self.offsets = self._offsets_file.seal(folder) if self._offsets_file is not None else None

    def _counts(self) -> Iterator[tuple[int, Array]]:
        for start in range(0, self._run.num_series, _PART):
            yield start, self._run.counts.read(start, min(start + _PART, self._run.num_series))

    def _pieces(self, counts: Array) -> Array:
        """The number of segments of each series; a series without steps has one."""
        return np.ones_like(counts) if self._segment is None else np.maximum(-(-counts // self._segment), 1)

    def _uniform_length(self) -> int | None:
        run, segment = self._run, self._segment
        if run.num_series == 0 or run.shortest != run.longest:
            return 0 if run.num_series == 0 else None
        if segment is None or run.longest <= segment:
            return run.longest
        return segment if run.longest % segment == 0 else None

    def _write_offsets(self) -> ColumnFile:
        file = self._fresh("offsets")
        column = ColumnFile.create(file, np.dtype("<i8"))
        column.append(np.zeros(1, dtype="<i8"))
        end = 0
        for _, counts in self._counts():
            ends = end + np.cumsum(self._cut(counts))
            column.append(ends)
            end = int(ends[-1])
        return column

    def _cut(self, counts: Array) -> Array:
        """Lengths of the segments of series with these lengths."""
        if self._segment is None:
            return counts
        pieces = self._pieces(counts)
        lengths = np.full(int(pieces.sum()), self._segment, dtype=np.int64)
        lengths[np.cumsum(pieces) - 1] = counts - (pieces - 1) * self._segment
        return lengths

    def _fresh(self, name: str) -> Path:
        """A path in the work folder, without the files of an earlier attempt."""
        path = self._work / f"final.{name}"
        remove_file(path)
        remove_file(path.with_name(path.name + "o"))
        return path

    def nonfinite(self, tally: NonFiniteCount) -> NonFinite:
        """Counts of a step column, with the series and step of the first."""
        if tally.first_step is None:
            return NonFinite(nan=0, inf=0, first=None)
        if self.length is not None:
            first = list(divmod(tally.first_step, self.length))
        else:
            low, high = 0, self.num_series
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if self._offset(middle) <= tally.first_step else (low, middle)
            first = [low, tally.first_step - self._offset(low)]
        return NonFinite(nan=tally.nan, inf=tally.inf, first=first)

    def _offset(self, index: int) -> int:
        if self._offsets_file is None:
            raise RuntimeError("series of one length have no offsets")
        return int(self._offsets_file.read(index, index + 1)[0])

    def entry(
        self, field: ColumnPlan, values: Shard | None, texts: Text | None, missing: Mapping[str, int], nonfinite: NonFinite
    ) -> ColumnEntry:
        """The manifest entry of a column."""
        return ColumnEntry(
            name=field.name,
            level=field.level,
            kind=field.kind,
            unit=field.unit,
            values=values,
            texts=texts,
            missing=missing.get(field.name, 0),
            nonfinite=nonfinite,
        )

    def series_entry(
        self, field: ColumnPlan, column: ColumnFile | TextFile, texts: Text | None, missing: Mapping[str, int]
    ) -> ColumnEntry:
        """A column with one value per series; the segments of a series repeat it."""
        column = self._repeated(column)
        if isinstance(column, TextFile):
            return self.entry(field, None, column.seal(self._folder), missing, NonFinite(nan=0, inf=0, first=None))
        tally = NonFiniteCount()
        for start in range(0, column.rows, _PART):
            values = column.read(start, min(start + _PART, column.rows))
            tally.add(from_bfloat16(values) if field.kind == "bfloat16" else values, first_step=start)
        first = None if tally.first_step is None else [tally.first_step, 0]
        return self.entry(field, column.seal(self._folder), texts, missing, NonFinite(nan=tally.nan, inf=tally.inf, first=first))

    def _repeated(self, column: ColumnFile | TextFile) -> ColumnFile | TextFile:
        if self._segment is None:
            return column
        self._num_repeated += 1
        path = self._fresh(f"repeated{self._num_repeated}")
        repeated = TextFile.create(path) if isinstance(column, TextFile) else ColumnFile.create(path, column.dtype)
        for start, counts in self._counts():
            indices = np.repeat(np.arange(len(counts)), self._pieces(counts))
            part = column.read(start, start + len(counts))
            if isinstance(repeated, TextFile):
                repeated.append(part.take(from_numpy(indices)))
            else:
                repeated.append(part[indices])
        return repeated

    def key_entry(self, missing: Mapping[str, int]) -> ColumnEntry | None:
        """The column that names the series: the key, or the file (and column) each came from."""
        if self._plan.key is not None:
            return self.series_entry(self._plan.key, self._run.keys, None, missing)
        if self._plan.grouping == "row" or any(source.path is None for source in self._plan.sources):
            return None
        names = self._series_names()
        name = "series"
        while name in {field.name for field in self._plan.step}:
            name += "_"
        field = ColumnPlan(name=name, arrow=pa.string(), level="series", kind="text", dtype=np.dtype("|u1"))
        column = TextFile.create(self._fresh("names"))
        while part := list(islice(names, _NAMES)):
            column.append(from_texts(part))
        return self.series_entry(field, column, None, missing)

    def _series_names(self) -> Iterator[str]:
        for source, schema in zip(self._plan.sources, self._plan.schemas, strict=True):
            if self._plan.grouping == "file":
                yield source.name
            else:
                yield from (f"{source.name}:{column}" for column in schema.names if column != self._plan.options.time)

"""Time-MoE's binary folders: `meta.json`, and raw values in `data-1-of-2.bin`, `data-2-of-2.bin`, …

    read_meta        `meta.json`, checked against the files; its sequences stay text until they are read
    TimeMoeSource    one row per sequence: a list in the column "sequence", and what else `meta.json` says of it ("id", "file")
    map_time_moe     a folder in place: stores over maps of its files
    FORMAT           the format as `stoker pack` knows it, by an entry point

Where a mean and a standard deviation are given, values are scaled back as Time-MoE does it.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from io import BufferedReader
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
import psutil
import pyarrow as pa

from stoker.errors import BadValueError, SourceChangedError, SourceEmptyError, SourceInvalidError, SourceTooLargeError
from stoker.extend import Array, FolderFormat, readable_bytes
from stoker.store import (
    Chunk,
    Column,
    DataSource,
    InferredTypeError,
    JsonRows,
    RowLocation,
    RowTexts,
    Store,
    Task,
    inside,
    row_chunk,
)

META = "meta.json"
META_MEMORY_SHARE = 0.5  # of the free memory, for `meta.json`
_META_INFLATION = 4  # bytes per byte of `meta.json`: its text, and an object for each sequence, which has 60 bytes or more
_NAMES = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64".split()
_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in _NAMES}
_DTYPES |= {dtype.str: dtype for dtype in _DTYPES.values()}


@dataclass(frozen=True, slots=True)
class BinFile:
    """One `.bin` file, and the range of elements that it holds."""

    path: Path
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TimeMoeMeta:
    """The content of `meta.json`."""

    dtype: np.dtype[Any]
    parts: list[BinFile]
    scales: list[msgspec.Raw]  # the text of each sequence, a view of the file's

    @property
    def num_elements(self) -> int:
        """Values in all files."""
        return self.parts[-1].end if self.parts else 0


def is_time_moe(folder: Path) -> bool:
    """Whether a folder is a Time-MoE data set: `meta.json` and a `.bin` file of any name, as in Time-MoE itself.

    Example:
        >>> is_time_moe(Path("/"))
        False
    """
    return (folder / META).is_file() and any(path.is_file() for path in folder.glob("*.bin"))


_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**60)]


class _Written(msgspec.Struct):
    """What `meta.json` must have."""

    num_sequences: _Count
    dtype: str
    files: dict[str, _Count]
    scales: list[msgspec.Raw]


def read_meta(folder: Path) -> TimeMoeMeta:
    """Read and check everything but the keys of each sequence."""
    path = folder / META
    num_bytes, free = path.stat().st_size, int(psutil.virtual_memory().available * META_MEMORY_SHARE)
    if num_bytes * _META_INFLATION > free:
        raise SourceTooLargeError(
            f"{path} has {readable_bytes(num_bytes)} and is held in memory, where {readable_bytes(free // _META_INFLATION)} of "
            "it fit. Cut the set into several folders."
        )
    if not num_bytes:
        raise SourceEmptyError(f"{path} is empty (0 bytes). Fetch or make the folder again.")
    try:
        written = msgspec.json.decode(path.read_bytes(), type=_Written)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise SourceInvalidError(
            f"{path} is not the description of a Time-MoE data set: {error}. Fetch or make the folder again."
        ) from None
    if written.dtype not in _DTYPES:
        raise SourceInvalidError(f"{path} has the dtype {written.dtype[:40]!r}; expected one of {' '.join(_NAMES)}.")
    if len(written.scales) != written.num_sequences:
        raise SourceInvalidError(
            f"{path} describes {len(written.scales):,} sequences, {written.num_sequences:,} expected by num_sequences. "
            "Fetch or make the folder again."
        )
    dtype = _DTYPES[written.dtype]
    return TimeMoeMeta(dtype, _parts(folder, written.files, dtype.itemsize), written.scales)


def _parts(folder: Path, files: dict[str, int], item_bytes: int) -> list[BinFile]:
    """The files, each exactly as long as `meta.json` says, by the number behind their first hyphen: data-2 before data-10."""
    numbered: dict[int, str] = {}
    for name in files:
        digits = [*name.split("-"), ""][1]
        if not (digits.isascii() and digits.isdecimal() and len(digits) < 19) or int(digits) in numbered:
            what = f"{folder / META} names the file {name[:80]!r}"
            raise SourceInvalidError(f"{what}; expected names like 'data-1-of-2.bin', each with a number of its own.")
        numbered[int(digits)] = name
    parts: list[BinFile] = []
    begin = 0
    for _, name in sorted(numbered.items()):
        path = inside(folder, name, named_by=META)
        length = files[name]
        size, expected = path.stat().st_size, length * item_bytes
        if size != expected:
            state = "cut off" if size < expected else "longer than meta.json says"
            raise SourceInvalidError(f"{path} is {state}: {size:,} bytes found, {expected:,} expected. Fetch or make it again.")
        parts.append(BinFile(path, begin, begin + length))
        begin += length
    return parts


COLUMN = "sequence"
_POSITION = pa.schema([("offset", pa.int64()), ("length", pa.int64()), ("mean", pa.float64()), ("std", pa.float64())])
_GROUP = 8192  # sequences that are parsed at a time: about a megabyte of text


@dataclass(frozen=True, slots=True)
class SequenceEntries:
    """Neighbouring sequences: where their values are, how they are scaled, and their other keys."""

    ARRAYS: ClassVar = ("offsets", "lengths", "scaled", "means", "stds")

    offsets: Array
    lengths: Array
    scaled: Array  # whether both a mean and a standard deviation are given: then values are x * std + mean
    means: Array
    stds: Array
    others: pa.Table

    def slice(self, begin: int, end: int) -> SequenceEntries:
        """Return a range of them."""
        arrays = {name: getattr(self, name)[begin:end] for name in self.ARRAYS}
        return SequenceEntries(**arrays, others=self.others.slice(begin, end - begin))


class TimeMoeSource(DataSource):
    """One folder. A position is a number of sequences."""

    path: Path

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self._meta_path = inside(path, META, named_by="")
        self.num_bytes = sum(file.stat().st_size for file in (self._meta_path, *path.glob("*.bin")))
        self._rows = JsonRows(self)

    @property
    def label(self) -> str:
        """The path of `meta.json`, for messages."""
        return str(self._meta_path)

    @cached_property
    def meta(self) -> TimeMoeMeta:
        """The content of `meta.json`."""
        return read_meta(self.path)

    @property
    def num_positions(self) -> int:  # type: ignore[override]
        """Positions are sequences."""
        return len(self.meta.scales)

    def schema(self) -> pa.Schema:
        """Return the values as lists, and the other keys of sequences."""
        kind = pa.from_numpy_dtype(self.meta.dtype)
        others = [field for field in self._described if field.name not in _POSITION.names]
        return pa.schema([pa.field(COLUMN, pa.large_list(kind)), *others])

    @cached_property
    def _described(self) -> pa.Schema:
        """All keys of the first sequences, with their types."""
        if not self.meta.scales:
            raise SourceEmptyError(f"{self.label} describes no sequence. Remove the folder, or leave it out of the pattern.")
        described = self._rows.types(self._texts(0))
        for name in ("offset", "length"):
            if name not in described.names or described.field(name).type != pa.int64():
                raise self.invalid(f"has sequences without an integer {name!r}. Is it a Time-MoE data set?")
        if COLUMN in described.names:
            raise self.invalid(f"has sequences with a key {COLUMN!r}, which is the name of the values. Rename it.")
        return described

    def _texts(self, row: int) -> RowTexts:
        """A group of sequences from `row` on, one per line."""
        group = self.meta.scales[row : row + _GROUP]
        lines = b"\n".join(group)
        if lines.count(b"\n") >= len(group):  # line breaks inside an element are only layout
            lines = b"\n".join(bytes(text).replace(b"\n", b" ") for text in group)
        return RowTexts(lines, len(group), row)

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        """Read groups of sequences; see `DataSource.read`."""
        wanted = self.schema() if schema is None else schema
        for row, sequences in self.sequences(wanted, row=start.row):
            # Neighbours of about `chunk_bytes` together, at least one.
            num_bytes = sequences.lengths * self.meta.dtype.itemsize
            group = (np.cumsum(num_bytes) - num_bytes) // max(chunk_bytes, 1)
            for begin, end in pairwise([0, *(np.flatnonzero(np.diff(group)) + 1).tolist(), len(num_bytes)]):
                yield partial(self._chunk, sequences.slice(begin, end), wanted, row + begin)

    def sequences(self, wanted: pa.Schema, *, row: int = 0) -> Iterator[tuple[int, SequenceEntries]]:
        """The sequences of `meta.json` from `row` on, in groups, each with the number of its first."""
        count = len(self.meta.scales)
        if row > count:
            raise self.invalid(f"describes {count:,} sequences, but {row:,} were read before. It was changed.")
        for first in range(row, count, _GROUP):
            yield first, self._sequences(self._texts(first), wanted)

    def _sequences(self, texts: RowTexts, wanted: pa.Schema) -> SequenceEntries:
        others = pa.schema([field for field in wanted if field.name != COLUMN])
        asked = pa.schema([*_POSITION, *others])
        try:
            table = self._rows.parse(texts, asked, self._described.names)
        except InferredTypeError as unfit:
            kind = asked.field(unfit.column).type
            misfits = self._rows.find_misfits(texts, {unfit.column: kind})
            _, row, text = misfits[0] if misfits else (unfit.column, texts.rows_before + 1, "another type")
            raise BadValueError(
                f"sequence {row:,} of {self.label} has {text[:40]} under {unfit.column!r}, but those before it have {kind}. "
                "Make the folder again."
            ) from unfit
        columns = {name: table.column(name).combine_chunks() for name in _POSITION.names}
        known = {name: np.asarray(array.is_valid().to_numpy(zero_copy_only=False)) for name, array in columns.items()}
        numbers = {name: np.asarray(array.fill_null(0).to_numpy()) for name, array in columns.items()}
        offsets, lengths, scaled = numbers["offset"], numbers["length"], known["mean"] & known["std"]
        total = self.meta.num_elements
        # Lengths are bounded before they are added, so that the sum cannot wrap around.
        fits = known["offset"] & known["length"] & (offsets >= 0) & (lengths >= 0) & (lengths <= total)
        fits &= offsets <= total - np.minimum(lengths, total)
        if not fits.all():
            i = int(np.argmin(fits))
            raise SourceInvalidError(
                f"sequence {texts.rows_before + i + 1:,} of {self.label} is at offset {offsets[i]:,} with length {lengths[i]:,}, "
                f"but the files hold {total:,} elements. Fetch or make the folder again."
            )
        if self.meta.dtype.kind != "f" and scaled.any():
            row = texts.rows_before + int(np.argmax(scaled)) + 1
            raise SourceInvalidError(
                f"sequence {row:,} of {self.label} has a mean and a std, but values of {self.meta.dtype}; "
                "scaled integers cannot be read. Store them as float32."
            )
        return SequenceEntries(offsets, lengths, scaled, numbers["mean"], numbers["std"], table.select(others.names))

    def _chunk(self, sequences: SequenceEntries, wanted: pa.Schema, row: int) -> Chunk:
        columns = {name: sequences.others.column(name) for name in sequences.others.column_names}
        if COLUMN in wanted.names:
            bounds, values = self.values(sequences)
            flat = pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), values.size, [None, pa.py_buffer(values)])
            columns[COLUMN] = pa.LargeListArray.from_arrays(pa.array(bounds), flat)
        return row_chunk(pa.table({name: columns[name] for name in wanted.names}), row)

    def values(self, sequences: SequenceEntries) -> tuple[Array, Array]:
        """The offsets of the sequences, and their values end to end, read into memory and scaled back."""
        bounds = np.zeros(len(sequences.lengths) + 1, dtype=np.int64)
        np.cumsum(sequences.lengths, out=bounds[1:])
        values = np.empty(int(bounds[-1]), dtype=self.meta.dtype)
        with ExitStack() as opened:
            files: dict[Path, BufferedReader] = {}
            # Neighbours whose values lie end to end are read at once.
            gaps = np.flatnonzero(sequences.offsets[1:] != sequences.offsets[:-1] + sequences.lengths[:-1]) + 1
            for first, last in pairwise([0, *gaps.tolist(), len(sequences.offsets)]):
                for part, begin, into in self._places(int(sequences.offsets[first]), values[bounds[first] : bounds[last]]):
                    if part.path not in files:
                        files[part.path] = opened.enter_context(part.path.open("rb"))
                    files[part.path].seek(begin * values.itemsize)
                    if files[part.path].readinto(into) < into.nbytes:
                        raise SourceChangedError(f"{part.path} changed while it was read: it is shorter. Pack the folder again.")
        with np.errstate(all="ignore"):
            for i in np.flatnonzero(sequences.scaled).tolist():
                sequence = values[bounds[i] : bounds[i + 1]]
                sequence *= float(sequences.stds[i])
                sequence += float(sequences.means[i])
        return bounds, values

    def _places(self, begin: int, values: Array) -> Iterator[tuple[BinFile, int, Array]]:
        """Where the elements from `begin` on are: the file, the elements before them in it, and the part of `values` they fill."""
        end = begin + values.size
        parts = self.meta.parts
        for part in parts[max(bisect_right(parts, begin, key=lambda part: part.begin) - 1, 0) :]:
            if part.begin >= end:
                return
            first, last = max(begin, part.begin), min(end, part.end)
            if first < last:
                yield part, first - part.begin, values[first - begin : last - begin]


def _extra_files(folder: Path) -> list[Path]:
    """Files that are not read with the folder."""
    return sorted(path for path in folder.iterdir() if path.name != META and path.suffix != ".bin")


FORMAT = FolderFormat(matches=is_time_moe, open=TimeMoeSource, extra_files=_extra_files)


# Time-MoE folders in place: stores over maps of their files, so that terabytes need no copy.
#
# The series of a store are end to end in one array, and a folder may have several files. So a folder becomes several stores: one for
# each range of series that are end to end in a file, in the order of `meta.json`. Series that span files, or that have to be
# scaled back, cannot be mapped and are read into memory.

MAX_RANGES = 4096  # more of them would be slower than a packed store, and need as many maps
MEMORY_SHARE = 0.5  # of the free memory, for series that cannot be mapped


def map_time_moe(folder: str | os.PathLike[str]) -> list[Store]:
    """Map the series of a Time-MoE folder, in the order of its `meta.json`, as stores with the column "sequence".

    Sizes of files and offsets of sequences are checked; values are not read.

    Args:
        folder: a folder with `meta.json` and `.bin` files, as `is_time_moe` recognises it.

    Returns:
        One store for each range of sequences that are end to end in one file.

    Raises:
        SourceInvalidError: the folder is not a Time-MoE data set, or damaged.
        SourceTooLargeError: the sequences are too scattered to map, or too large to read into memory.
    """
    path = Path(folder)
    source = TimeMoeSource(path, path.name)
    groups = [sequences for _, sequences in source.sequences(pa.schema([]))]
    if not groups:
        source.schema()  # raises: there is nothing
    joined = {name: np.concatenate([getattr(group, name) for group in groups]) for name in SequenceEntries.ARRAYS}
    all_sequences = SequenceEntries(**joined, others=pa.concat_tables([group.others for group in groups]))
    ranges = _ranges(source, all_sequences)
    if len(ranges) > MAX_RANGES:
        raise SourceTooLargeError(
            f"{source.label} has its sequences in {len(ranges):,} separate ranges, at most {MAX_RANGES:,} are mapped. "
            f"Pack it: stoker pack {path} {path.name}.stoker"
        )
    copied = sum(int(all_sequences.lengths[first:last].sum()) for first, last, part in ranges if part is None)
    num_bytes, free = copied * source.meta.dtype.itemsize, int(psutil.virtual_memory().available * MEMORY_SHARE)
    if num_bytes > free:
        raise SourceTooLargeError(
            f"{source.label} has {readable_bytes(num_bytes)} of sequences that are scaled or span files, so they cannot be mapped, "
            f"and at most {readable_bytes(free)} are read into memory. Pack it: stoker pack {source.path} {source.path.name}.stoker"
        )
    maps: dict[Path, Array] = {}
    return [_store(source, all_sequences.slice(first, last), part, maps, first) for first, last, part in ranges]


def _ranges(source: TimeMoeSource, sequences: SequenceEntries) -> list[tuple[int, int, BinFile | None]]:
    """Ranges of sequences that are end to end in one file, with that file; None for those that have to be copied."""
    parts = source.meta.parts
    offsets, lengths = sequences.offsets, sequences.lengths
    begins = np.array([part.begin for part in parts], dtype=np.int64)
    ends = np.array([part.end for part in parts], dtype=np.int64)
    at = np.maximum(np.searchsorted(begins, offsets, side="right") - 1, 0)
    in_one_file = offsets + lengths <= (ends[at] if len(parts) else 0)
    # An empty sequence has no position: it joins its neighbour.
    file = np.where(in_one_file & ~sequences.scaled, at, -1)
    follows = (offsets[1:] == offsets[:-1] + lengths[:-1]) | (file[1:] < 0)
    cuts = np.flatnonzero((file[1:] != file[:-1]) | ~follows) + 1
    bounds = [0, *cuts.tolist(), len(offsets)]
    ranges = [(first, last) for first, last in pairwise(bounds) if last > first]
    return [(first, last, parts[int(file[first])] if file[first] >= 0 else None) for first, last in ranges]


def _store(source: TimeMoeSource, sequences: SequenceEntries, part: BinFile | None, maps: dict[Path, Array], first: int) -> Store:
    if part is None:
        offsets, values = source.values(sequences)
    else:
        if part.path not in maps:
            maps[part.path] = np.memmap(part.path, source.meta.dtype, mode="r") if part.end > part.begin else np.empty(0)
        begin = int(sequences.offsets[0])
        offsets = np.zeros(len(sequences.lengths) + 1, dtype=np.int64)
        np.cumsum(sequences.lengths, out=offsets[1:])
        # A plain view: a subclass of arrays would make every slice slower.
        values = np.asarray(maps[part.path])[begin - part.begin : begin - part.begin + int(offsets[-1])]
    values = values.astype(source.meta.dtype, copy=False).view()
    values.flags.writeable = offsets.flags.writeable = False
    lengths = sequences.lengths
    uniform = int(lengths[0]) if (lengths == lengths[0]).all() else None
    where = f"{source.path}" if part is None else f"{part.path}"
    return Store(
        {COLUMN: Column(name=COLUMN, dtype=values.dtype, level="step", kind="number")},
        {COLUMN: values},
        num_series=len(lengths),
        length=uniform,
        offsets=None if uniform is not None else offsets,
        name=f"{where} (sequences {first:,} to {first + len(lengths) - 1:,})",
    )

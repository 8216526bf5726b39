"""Shards: flat `.npy` files, one or two per column, and what is written to and read from them.

Column, Texts            what a store says about a column
map_shard, open_shard    read a shard: mapped, never read whole
ColumnFile, TextFile     write a shard: append, hash block by block, seal
NonFiniteCount           counts of NaN and Inf of a column
"""

from __future__ import annotations

import errno
import mmap
import os
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, Self, overload

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from stoker import _disk
from stoker._disk import AppendFile, naming
from stoker._types import Array
from stoker.errors import DiskError, StoreDamagedError
from stoker.store.manifest import (
    BLOCK_BYTES,
    HEADER_BYTES,
    SHARD_NAME,
    ColumnEntry,
    Manifest,
    NonFinite,
    Shard,
    SourceEntry,
    Text,
)


class NonFiniteCount:
    """Counts of NaN and Inf over the values of one column, and the step of the first.

    Example:
        >>> count = NonFiniteCount()
        >>> count.add(np.array([1.0, np.nan, np.inf]), first_step=0)
        >>> count.nan, count.inf, count.first_step
        (1, 1, 1)
    """

    __slots__ = ("first_step", "inf", "nan")

    def __init__(self, *, nan: int = 0, inf: int = 0, first_step: int | None = None) -> None:
        self.nan = nan
        self.inf = inf
        self.first_step = first_step

    def add(self, values: Array, *, first_step: int) -> None:
        """Count `values`, which begin at step `first_step` of the column."""
        if values.dtype.kind != "f":
            return
        # A sum is finite only if all its terms are: one pass, no temporary. (A sum that overflows proves nothing.)
        with np.errstate(over="ignore", invalid="ignore"):
            if np.isfinite(values.sum(dtype=np.float32 if values.dtype.itemsize == 2 else None)):
                return
        bad = ~np.isfinite(values)
        if not bad.any():
            return
        nan = int(np.isnan(values).sum())
        self.nan += nan
        self.inf += int(bad.sum()) - nan
        if self.first_step is None:
            rows = bad if bad.ndim == 1 else bad.any(axis=1)
            self.first_step = first_step + int(rows.argmax())

    def at(self, offsets: Any) -> NonFinite:
        """The counts for the manifest. `offsets` are those of the series, with `len` and `[]`; None for one value per series."""
        step = self.first_step
        if step is None:
            return NonFinite(nan=0, inf=0, first=None)
        series = step if offsets is None else bisect_right(offsets, step) - 1
        return NonFinite(nan=self.nan, inf=self.inf, first=[series, 0 if offsets is None else step - int(offsets[series])])


# Columns and their strings.

Level = Literal["step", "series"]
Kind = Literal["number", "bfloat16", "timestamp", "duration", "category", "text"]

MISSING_TIME = np.iinfo(np.int64).min  # NumPy's NaT
MISSING_CODE = -1


def missing_value(kind: Kind) -> Any:
    """What a missing value of a column of this kind is stored as; an integer cannot be missing."""
    values = {"timestamp": MISSING_TIME, "duration": MISSING_TIME, "category": MISSING_CODE, "bfloat16": 0x7FC0}
    return values.get(kind, np.nan)


class Texts(Sequence[str]):
    """A read-only list of strings over two arrays: UTF-8 bytes end to end, and offsets into them.

    Example:
        >>> Texts.of(["a", "bc"])[1]
        'bc'
    """

    __slots__ = ("offsets", "utf8")

    def __init__(self, utf8: npt.NDArray[Any], offsets: npt.NDArray[Any]) -> None:
        self.utf8 = utf8
        self.offsets = offsets

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """From a list of Python strings."""
        encoded = [text.encode() for text in texts]
        offsets = np.zeros(len(encoded) + 1, dtype="<i8")
        np.cumsum([len(text) for text in encoded], out=offsets[1:])
        offsets.flags.writeable = False
        return cls(np.frombuffer(b"".join(encoded), dtype="|u1"), offsets)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        i = range(len(self))[index]
        return bytes(self.utf8[self.offsets.item(i) : self.offsets.item(i + 1)]).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Texts):
            return np.array_equal(self.offsets, other.offsets) and np.array_equal(self.utf8, other.utf8)
        return list(self) == other if isinstance(other, list) else NotImplemented

    def __hash__(self) -> int:
        return hash((len(self), self.utf8.tobytes()))

    def __repr__(self) -> str:
        shown = ", ".join(repr(text) for text in self[:6])
        return f"[{shown}{', …' if len(self) > 6 else ''}]"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One entry of `Store.schema`."""

    name: str
    dtype: np.dtype[Any] | None  # None for strings
    level: Level
    kind: Kind
    unit: str | None = None  # of timestamps and durations: "ns", "us, UTC"
    width: int | None = None  # numbers per step, where that is more than one
    texts: Texts | None = None  # the categories that codes refer to, or the strings themselves
    missing: int = 0  # values that were missing in the source (null or empty)
    nonfinite: NonFinite = NonFinite(nan=0, inf=0, first=None)

    @property
    def label(self) -> str:
        """The type in a word, as `inspect` shows it."""
        if self.kind in ("timestamp", "duration"):
            return f"{self.kind}[{self.unit}]"
        if self.kind in ("category", "text", "bfloat16"):
            return self.kind
        return f"{self.dtype}" + (f"[{self.width}]" if self.width is not None else "")


def entry_of(
    column: Any, values: Shard | None, texts: Text | None = None, *, missing: int = 0, nonfinite: NonFinite | None = None
) -> ColumnEntry:
    """The entry in a manifest of a column, or of what a pack plans to be one."""
    return ColumnEntry(
        name=column.name,
        level=column.level,
        kind=column.kind,
        unit=column.unit,
        values=values,
        texts=texts,
        missing=missing,
        nonfinite=NonFinite(nan=0, inf=0, first=None) if nonfinite is None else nonfinite,
    )


# Reading. The header of a shard is a function of its dtype and shape, so opening compares 128 bytes instead of parsing them.


def header(dtype: str, shape: Sequence[int]) -> bytes:
    """The first 128 bytes of a shard: NumPy's format 1.0, padded to a fixed size so that it can be written last."""
    sizes = ", ".join(str(n) for n in shape) + ("," if len(shape) == 1 else "")
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({sizes}), }}"
    length = HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def hash_block(data: bytes | memoryview | Array) -> str:
    """The hash of one block of values."""
    return xxhash.xxh3_64_hexdigest(data)


def name_of(dtype: str, shape: Sequence[int], blocks: Sequence[str]) -> str:
    """The file name of a shard is a hash of its content: equal content, equal name."""
    return xxhash.xxh3_64_hexdigest(header(dtype, shape) + "".join(blocks).encode()) + ".npy"


MapFile = Callable[[int, str], mmap.mmap]
"""Maps an open shard, given with its name."""


def _map_file(fd: int, _: str) -> mmap.mmap:
    return mmap.mmap(fd, 0, prot=mmap.PROT_READ)


def map_shard(folder: Path, shard: Shard, what: str, *, read_below: int = 0, map_file: MapFile = _map_file) -> Array:
    """Map a shard read-only, after checking that it is a plain file of the right size and header. Reads no values.

    A shard of fewer than `read_below` bytes is read instead: a process may have 65,530 mappings, and thousands of parts need more.

    Raises:
        StoreDamagedError: the file is missing, or differs from the manifest; the message says that it holds `what`.
    """
    fd = open_shard(folder, shard, what)
    try:
        if shard.num_bytes < read_below:
            data = os.pread(fd, shard.values_bytes, HEADER_BYTES)
            return np.frombuffer(data, dtype=shard.dtype).reshape(shard.shape)
        with _disk.naming(folder / shard.file):  # the address space of a process may be limited
            mapped = map_file(fd, shard.file)
    finally:
        os.close(fd)
    return np.frombuffer(mapped, dtype=shard.dtype, offset=HEADER_BYTES).reshape(shard.shape)


def map_shards(folder: Path, manifest: Manifest, **reading: Any) -> tuple[dict[str, Column], dict[str, Array], Array | None]:
    """The columns, values and offsets of a manifest, checked as at every opening; `reading` are options of `map_shard`."""
    columns: dict[str, Column] = {}
    values: dict[str, Array] = {}
    for entry in manifest.columns:
        texts, shape = None, entry.values.shape if entry.values is not None else []
        if entry.values is not None:
            values[entry.name] = map_shard(folder, entry.values, f"column {entry.name!r}", **reading)
        if entry.texts is not None:
            utf8 = map_shard(folder, entry.texts.utf8, f"texts of column {entry.name!r}", **reading)
            what = f"the text offsets of column {entry.name!r}"
            texts = Texts(utf8, _map_offsets(folder, entry.texts.offsets, what, len(utf8), reading))
        columns[entry.name] = Column(
            name=entry.name,
            dtype=np.dtype(entry.values.dtype) if entry.values is not None else None,
            level=entry.level,
            kind=entry.kind,
            unit=entry.unit,
            width=shape[1] if len(shape) == 2 else None,
            texts=texts,
            missing=entry.missing,
            nonfinite=entry.nonfinite,
        )
    if manifest.offsets is None:
        return columns, values, None
    return columns, values, _map_offsets(folder, manifest.offsets, "the offsets of the series", manifest.num_steps, reading)


def _map_offsets(folder: Path, shard: Shard, what: str, expected: int, reading: dict[str, Any]) -> Array:
    """Map offsets; refuses those that do not run from 0 to the expected end."""
    offsets = map_shard(folder, shard, what, **reading)
    first, last = offsets.item(0), offsets.item(-1)
    if (first, last) != (0, expected):
        raise StoreDamagedError(
            f"{folder}: {what} run from {first:,} to {last:,}, but 0 to {expected:,} are expected. Pack the store again."
        )
    return offsets


def open_inside(folder: Path, name: str) -> int:
    """Open a shard for reading, after checking its name; it must be a plain file, not a link or device."""
    if not SHARD_NAME.fullmatch(name):
        raise StoreDamagedError(f"{folder}: shard name {name!r} does not have the form of 16 hex digits and '.npy'.")
    return _disk.open_plain(folder / name, StoreDamagedError)


def open_shard(folder: Path, shard: Shard, what: str) -> int:
    """Open a shard, checked as `map_shard` says, and return its descriptor."""
    path = folder / shard.file
    try:
        fd = open_inside(folder, shard.file)
    except FileNotFoundError:
        raise StoreDamagedError(f"{path} is missing: it holds {what}. Restore the file or pack the store again.") from None
    try:
        num_bytes = os.fstat(fd).st_size
        if num_bytes != shard.num_bytes:
            raise StoreDamagedError(
                f"{path} has {num_bytes:,} bytes, but {shard.num_bytes:,} are expected: it holds {what}. Pack the store again."
            )
        if os.pread(fd, HEADER_BYTES, 0) != header(shard.dtype, shard.shape):
            raise StoreDamagedError(f"{path} has a header that does not fit the manifest: it holds {what}. Pack the store again.")
    except BaseException:
        os.close(fd)
        raise
    return fd


def damaged_blocks(folder: Path, shard: Shard, report: Callable[[int], None]) -> Iterator[int]:
    """Read every byte of a shard and yield the numbers of the blocks whose hash differs. `report` gets bytes read."""
    fd = open_inside(folder, shard.file)
    try:
        buffer = bytearray(min(BLOCK_BYTES, shard.values_bytes))
        for i, expected in enumerate(shard.blocks):
            start = i * BLOCK_BYTES
            view = memoryview(buffer)[: min(BLOCK_BYTES, shard.values_bytes - start)]
            count = os.preadv(fd, [view], HEADER_BYTES + start)
            if count != len(view) or hash_block(view) != expected:
                yield i
            report(len(view))
    finally:
        os.close(fd)


# Writing. What a killed process left is reused only after its bytes have been read and hashed again, so nothing needs to be synced
# before the end: a file that lost its tail is detected.

_WRITEBACK_BYTES = 4 << 20


class ColumnMark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The end of a column file: enough to resume it, and to notice if its bytes have changed."""

    rows: int
    blocks: list[str]
    tail: str  # hash of the last, unfinished block


def read_into(fd: int, view: memoryview, offset: int) -> int:
    """Fill a buffer from a file, and return how many bytes it got: fewer where the file ends."""
    done = 0
    while done < view.nbytes and (count := os.preadv(fd, [view[done:]], offset + done)):
        done += count
    return done


def pieces(values: Array, max_bytes: int = BLOCK_BYTES) -> Iterator[Array]:
    """An array in pieces of at most some bytes, so that no more of a mapped column is in memory at once."""
    rows = max(1, max_bytes // (values.dtype.itemsize * (values.shape[1] if values.ndim == 2 else 1)))
    return (np.ascontiguousarray(values[start : start + rows]) for start in range(0, len(values), rows))


class ColumnFile:
    """One growing array on disk. Values are appended in C order; a row has `width` numbers."""

    def __init__(self, file: AppendFile, dtype: np.dtype[Any], width: int | None, block_bytes: int | None = None) -> None:
        self.dtype = dtype
        self.width = width
        self.block_bytes = BLOCK_BYTES if block_bytes is None else block_bytes
        self.rows = 0
        self.path = file.path
        self._file = file
        self._sealed: Shard | None = None
        self._blocks: list[str] = []
        self._hasher = xxhash.xxh3_64()
        self._in_block = 0
        self._written_back = 0

    @classmethod
    def create(cls, path: Path, dtype: np.dtype[Any], width: int | None = None, *, block_bytes: int | None = None) -> Self:
        """Start an empty column, with room for the header. One that is sealed has hashes of `BLOCK_BYTES`, others of any size."""
        file = AppendFile.create(path)
        try:
            file.append(bytes(HEADER_BYTES))
        except BaseException:
            file.close()
            raise
        return cls(file, dtype, width, block_bytes)

    @classmethod
    def reopen(cls, path: Path, dtype: np.dtype[Any], width: int | None, mark: ColumnMark) -> Self | None:
        """Resume a column where `mark` was made; None if the bytes on disk are not those that were written.

        A column that was sealed already is found in the folder above: it can be read and sealed, not appended to.
        """
        num_bytes = mark.rows * (width or 1) * dtype.itemsize
        shape = [mark.rows] if width is None else [mark.rows, width]
        blocks = mark.blocks if num_bytes == len(mark.blocks) * BLOCK_BYTES else [*mark.blocks, mark.tail]
        shard = Shard(file=name_of(dtype.str, shape, blocks), dtype=dtype.str, shape=shape, blocks=blocks)
        sealed = not path.exists()
        where = path.parent.parent / shard.file if sealed else path
        try:
            if where.is_symlink() or where.stat().st_size < HEADER_BYTES + num_bytes:
                return None
        except OSError:
            return None
        fresh = None if sealed else AppendFile.reopen(where, HEADER_BYTES + num_bytes)
        column = cls(fresh or AppendFile(where, os.open(where, os.O_RDONLY), num_bytes), dtype, width)
        column._sealed = shard if sealed else None
        with where.open("rb", buffering=0) as raw:
            raw.seek(HEADER_BYTES)
            for start in range(0, num_bytes, BLOCK_BYTES):
                column._hash(memoryview(raw.read(min(BLOCK_BYTES, num_bytes - start))))
        column.rows = mark.rows
        if column.mark() == mark:
            return column
        column.close()
        return None

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int) -> Any:
        return self.read(row, row + 1)[0]

    def append(self, values: Array) -> None:
        """Add rows. `values` must be C-contiguous and of this column's dtype and width."""
        data = memoryview(values.reshape(-1).view(np.uint8))
        self._hash(data)
        self._file.append(data)
        self.rows += len(values)
        behind = self._file.num_bytes - self._written_back
        if behind >= _WRITEBACK_BYTES:
            self._file.start_writeback(self._written_back, behind)
            self._written_back = self._file.num_bytes

    def _hash(self, data: memoryview) -> None:
        done = 0
        while done < data.nbytes:
            part = data[done : done + self.block_bytes - self._in_block]
            self._hasher.update(part)
            self._in_block += part.nbytes
            done += part.nbytes
            if self._in_block == self.block_bytes:
                self._blocks.append(self._hasher.hexdigest())
                self._hasher.reset()
                self._in_block = 0

    def mark(self) -> ColumnMark:
        """The current end of the file."""
        return ColumnMark(rows=self.rows, blocks=list(self._blocks), tail=self._hasher.hexdigest())

    def read(self, start: int, stop: int) -> Array:
        """Read rows back. Not mapped: mapped pages would count as memory of this process."""
        row_bytes = self.dtype.itemsize * (self.width or 1)
        out = np.empty((stop - start) * (self.width or 1), dtype=self.dtype)
        view = memoryview(out.view(np.uint8))
        with naming(self.path):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if read_into(fd, view, HEADER_BYTES + start * row_bytes) < view.nbytes:
                    raise DiskError(errno.EIO, f"{self.path} ends before row {stop:,}, which was written to it.")
            finally:
                os.close(fd)
        return out if self.width is None else out.reshape(-1, self.width)

    def seal(self, folder: Path) -> Shard:
        """Finish: write the header, sync, and move the file to its name in `folder`."""
        if self._sealed is not None:
            return self._sealed
        shape = [self.rows] if self.width is None else [self.rows, self.width]
        blocks = [*self._blocks, self._hasher.hexdigest()] if self._in_block else list(self._blocks)
        name = name_of(self.dtype.str, shape, blocks)
        self._file.overwrite(header(self.dtype.str, shape), 0)
        self._file.publish(folder / name)
        self.path = folder / name
        return Shard(file=name, dtype=self.dtype.str, shape=shape, blocks=blocks)

    def close(self) -> None:
        """Close the descriptor."""
        self._file.close()


_BYTE = np.dtype("|u1")
_OFFSET = np.dtype("<i8")


class TextFile:
    """Growing strings on disk: their UTF-8 bytes in one column file, offsets in another. Sealed into a `Text`."""

    def __init__(self, utf8: ColumnFile, offsets: ColumnFile) -> None:
        self._utf8 = utf8
        self._offsets = offsets

    @classmethod
    def create(cls, path: Path, *, block_bytes: int | None = None) -> Self:
        """Start an empty list of strings."""
        offsets = path.with_name(path.name + "o")
        texts = cls(
            ColumnFile.create(path, _BYTE, block_bytes=block_bytes), ColumnFile.create(offsets, _OFFSET, block_bytes=block_bytes)
        )
        texts._offsets.append(np.zeros(1, dtype=_OFFSET))
        return texts

    @classmethod
    def reopen(cls, path: Path, marks: list[ColumnMark]) -> Self | None:
        """Resume where `marks` were made; None if the bytes are not those that were written."""
        utf8 = ColumnFile.reopen(path, _BYTE, None, marks[0])
        offsets = ColumnFile.reopen(path.with_name(path.name + "o"), _OFFSET, None, marks[1])
        return cls(utf8, offsets) if utf8 is not None and offsets is not None else None

    @property
    def rows(self) -> int:
        """The number of strings."""
        return self._offsets.rows - 1

    def append(self, texts: pa.Array) -> None:
        """Add strings; a missing one becomes the empty string."""
        if len(texts) == 0:
            return
        texts = texts.cast(pa.large_string())
        texts = texts.fill_null("") if texts.null_count else texts  # imports pandas
        offsets = np.frombuffer(texts.buffers()[1], dtype=_OFFSET)[texts.offset : texts.offset + len(texts) + 1]
        before = self._utf8.rows
        if offsets[-1] > offsets[0]:
            self._utf8.append(np.frombuffer(texts.buffers()[2], dtype=_BYTE)[offsets[0] : offsets[-1]])
        self._offsets.append(offsets[1:] - offsets[0] + before)

    def mark(self) -> list[ColumnMark]:
        """The current ends of both files."""
        return [self._utf8.mark(), self._offsets.mark()]

    def read(self, start: int, stop: int) -> pa.Array:
        """Strings `start` to `stop` as an Arrow array."""
        offsets = self._offsets.read(start, stop + 1)
        utf8 = self._utf8.read(int(offsets[0]), int(offsets[-1]))
        buffers = [None, pa.py_buffer(offsets - offsets[0]), pa.py_buffer(utf8)]
        return pa.Array.from_buffers(pa.large_string(), stop - start, buffers)

    def seal(self, folder: Path) -> Text:
        """Finish both files."""
        return Text(utf8=self._utf8.seal(folder), offsets=self._offsets.seal(folder))

    def close(self) -> None:
        """Close the descriptors."""
        self._utf8.close()
        self._offsets.close()


class StoredColumns(Protocol):
    """What functions that write or convert a whole store ask of it."""

    @property
    def schema(self) -> Mapping[str, Column]:
        """Its columns by name."""

    @property
    def name(self) -> str:
        """Its name in messages."""

    @property
    def path(self) -> Path | None:
        """Its folder, if it is on disk."""

    @property
    def manifest(self) -> Manifest | None:
        """What describes it on disk."""

    @property
    def num_steps(self) -> int:
        """Steps of all series."""

    @property
    def uniform_length(self) -> int | None:
        """The length of all series, where they have the same."""

    @property
    def offsets(self) -> Array:
        """Where each series begins, and the end of the last."""

    @property
    def key(self) -> str | None:
        """The column that names the series."""

    @property
    def time(self) -> str | None:
        """The column that orders the steps."""

    def __len__(self) -> int: ...
    def column(self, name: str) -> Array:
        """A whole flat column."""

    def _pieces(self, name: str, max_bytes: int) -> Iterator[Array]: ...
    def _origins(self) -> tuple[list[str], list[SourceEntry] | None]: ...

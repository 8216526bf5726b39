"""Column files: shards while they grow. Appended to, hashed block by block, and sealed into a shard at the end.

What a killed process left behind is taken up again only after its bytes have been read and hashed anew, so nothing
here needs to be synced before the end: a file that lost its tail is found out, not trusted.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from stoker.errors import DiskError
from stoker.files import AppendFile, naming
from stoker.store.manifest import BLOCK_BYTES, HEADER_BYTES, Shard
from stoker.store.shard import header, name_of

Array = npt.NDArray[Any]

_WRITEBACK_BYTES = 4 << 20


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a column file is: enough to take it up again, and to notice if it is not as it was."""

    rows: int
    blocks: list[str]
    tail: str
    """Hash of the last, unfinished block."""


class ColumnFile:
    """One growing array on disk. Values are appended in C order; `width` numbers make a row."""

    def __init__(self, file: AppendFile, dtype: np.dtype[Any], width: int | None) -> None:
        self.dtype = dtype
        self.width = width
        self.rows = 0
        self.path = file.path
        self._file = file
        self._sealed: Shard | None = None
        self._blocks: list[str] = []
        self._hasher = xxhash.xxh3_64()
        self._in_block = 0
        self._written_back = 0

    @classmethod
    def create(cls, path: Path, dtype: np.dtype[Any], width: int | None = None) -> Self:
        """Start an empty column; the header's place is kept free."""
        file = AppendFile.create(path)
        try:
            file.append(bytes(HEADER_BYTES))
        except BaseException:
            file.close()
            raise
        return cls(file, dtype, width)

    @classmethod
    def reopen(cls, path: Path, dtype: np.dtype[Any], width: int | None, mark: Mark) -> Self | None:
        """Take up a column where `mark` was made; None if the bytes on disk are not those that were written.

        A column that was sealed into the folder above is found there: it then can be read and sealed, not appended to.
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
        file = (
            AppendFile(where, os.open(where, os.O_RDONLY), num_bytes)
            if sealed
            else AppendFile.reopen(where, HEADER_BYTES + num_bytes)
        )
        column = cls(file, dtype, width)
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
            part = data[done : done + BLOCK_BYTES - self._in_block]
            self._hasher.update(part)
            self._in_block += part.nbytes
            done += part.nbytes
            if self._in_block == BLOCK_BYTES:
                self._blocks.append(self._hasher.hexdigest())
                self._hasher.reset()
                self._in_block = 0

    def mark(self) -> Mark:
        """Where the file is now."""
        return Mark(rows=self.rows, blocks=list(self._blocks), tail=self._hasher.hexdigest())

    def read(self, start: int, stop: int) -> Array:
        """Read rows back. A plain read and not a map: mapped pages would count as memory of this process."""
        row_bytes = self.dtype.itemsize * (self.width or 1)
        out = np.empty((stop - start) * (self.width or 1), dtype=self.dtype)
        view = memoryview(out.view(np.uint8))
        with naming(self.path):
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                done = 0
                while done < view.nbytes:
                    count = os.preadv(fd, [view[done:]], HEADER_BYTES + start * row_bytes + done)
                    if count == 0:
                        raise DiskError(errno.EIO, f"{self.path} ends before row {stop:,}, which was written to it.")
                    done += count
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
        """Give the descriptor back."""
        self._file.close()

"""`.npy` arrays, read in parts by position.

One axis is one series of steps, in the column "value". Two axes are a series a row, as lists in the column "value"; or,
with `wide`, a table whose columns "c0", "c1", … are the second axis. Bits come out as they are in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.errors import SourceEmpty, SourceTooLarge
from stoker.store.sources.folder import read_fully
from stoker.store.sources.npy_header import Header, read_header, to_arrow, to_lists
from stoker.store.sources.source import Chunk, Place, Source, Task, decoding

COLUMN = "value"
MAX_COLUMNS = 1 << 20


class NpySource(Source):
    """One `.npy` file. A position is a number of rows."""

    path: Path

    def __init__(self, path: Path, name: str, *, wide: bool = False) -> None:
        self.path = path
        self.name = name
        self.wide = wide
        self.num_bytes = path.stat().st_size
        if self.num_bytes == 0:
            raise SourceEmpty(f"{path} is empty (0 bytes). Remove it, or leave it out of the pattern.")

    @cached_property
    def _header(self) -> Header:
        with decoding(self.path, "a .npy array"), self.path.open("rb") as file:
            return read_header(file, self.num_bytes, self.label)

    @property
    def num_rows(self) -> int:
        """Rows by the file's own account."""
        return self._header.rows

    @property
    def num_positions(self) -> int:  # type: ignore[override]
        """Positions are rows."""
        return self.num_rows

    @property
    def _is_table(self) -> bool:
        return self.wide and len(self._header.shape) == 2

    def schema(self) -> pa.Schema:
        value = self._header.arrow_type
        if self._is_table:
            width = self._header.shape[1]
            if width > MAX_COLUMNS:
                raise SourceTooLarge(
                    f"{self.path} has {width:,} columns; at most {MAX_COLUMNS:,} can be read. Is it [steps, columns]?"
                )
            return pa.schema([(f"c{i}", value) for i in range(width)])
        return pa.schema([(COLUMN, value if len(self._header.shape) == 1 else pa.large_list(value))])

    def read(self, schema: pa.Schema | None, *, start: Place, chunk_bytes: int) -> Iterator[Task]:
        header = self._header
        wanted = [int(name[1:]) for name in schema.names] if schema is not None and self._is_table else None
        step = max(1, chunk_bytes // max(header.row_bytes, 1))
        for row in range(start.position, header.rows, step):
            yield partial(self._chunk, row, min(row + step, header.rows), wanted)

    def _chunk(self, begin: int, end: int, wanted: list[int] | None) -> Chunk:
        with decoding(self.path, "a .npy array"):
            values = self._read_rows(begin, end, wanted)
            if not self._is_table:
                array = to_lists(values, self.label) if values.ndim == 2 else to_arrow(values, self.label)
                table = pa.table({COLUMN: array})
            else:
                numbers = range(self._header.shape[1]) if wanted is None else wanted
                table = pa.table({f"c{c}": to_arrow(values[:, i], self.label) for i, c in enumerate(numbers)})
        return Chunk(table, Place(begin, begin), Place(end, end))

    def _read_rows(self, begin: int, end: int, wanted: list[int] | None) -> np.ndarray[Any, Any]:
        header = self._header
        with self.path.open("rb") as file:
            if len(header.shape) == 2 and header.fortran_order:
                return self._read_by_column(file.fileno(), begin, end, range(header.shape[1]) if wanted is None else wanted)
            data = self._pread(file.fileno(), header.offset + begin * header.row_bytes, (end - begin) * header.row_bytes)
        values = np.frombuffer(data, dtype=header.dtype).reshape(end - begin, *header.shape[1:])
        return values if wanted is None else values[:, wanted]

    def _read_by_column(self, fd: int, begin: int, end: int, columns: range | list[int]) -> np.ndarray[Any, Any]:
        """Rows of an array whose columns lie one behind the other."""
        header = self._header
        size = header.dtype.itemsize
        values = np.empty((end - begin, len(columns)), dtype=header.dtype)
        for i, column in enumerate(columns):
            data = self._pread(fd, header.offset + (column * header.rows + begin) * size, (end - begin) * size)
            values[:, i] = np.frombuffer(data, dtype=header.dtype)
        return values

    def _pread(self, fd: int, offset: int, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        read_fully(fd, memoryview(data), offset, self.path)
        return data

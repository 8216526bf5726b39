"""Sorted runs that other processes have published, read in slices; every block that is read is hashed.

StoredColumn    a file of a run in an exchange
stored_run      a run, as a merge reads it
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stoker._types import Array
from stoker.store.manifest import HEADER_BYTES
from stoker.store.pack.exchange import Exchange
from stoker.store.pack.sorted_runs import ReadableRun, RunLayout, RunMark
from stoker.store.shards import ColumnMark, TextFile, hash_block

HASH_BYTES = 64 << 10
"""Bytes of one hash in a run that is read in slices: small, as a slice reads whole blocks."""


class StoredColumn:
    """One file of a published run. `table`, where there is one, replaces codes by those of the whole pack."""

    def __init__(self, exchange: Exchange, name: str, dtype: np.dtype[Any], mark: ColumnMark, table: Array | None = None) -> None:
        self.dtype = dtype
        self.rows = mark.rows
        self._exchange = exchange
        self._name = name
        self._hashes = [*mark.blocks, mark.tail]
        self._num_bytes = mark.rows * dtype.itemsize
        self._table = table

    def read(self, start: int, stop: int) -> Array:
        """Rows `start` to `stop`, which have the hashes of those that were written."""
        first_byte, num_bytes = start * self.dtype.itemsize, (stop - start) * self.dtype.itemsize
        first, last = first_byte // HASH_BYTES, -(-(first_byte + num_bytes) // HASH_BYTES)
        begin, end = first * HASH_BYTES, min(last * HASH_BYTES, self._num_bytes)

        def is_right(data: Any) -> bool:
            view = memoryview(data)
            blocks = (view[i : i + HASH_BYTES] for i in range(0, end - begin, HASH_BYTES))
            return [hash_block(block) for block in blocks] == self._hashes[first:last]

        data = self._exchange.read_range(self._name, HEADER_BYTES + begin, HEADER_BYTES + end, is_right) if begin < end else b""
        values: Array = np.frombuffer(data, dtype=np.uint8)[first_byte - begin :][:num_bytes].view(self.dtype)
        if self._table is not None:
            return np.asarray(self._table[values])
        return values if values.flags.writeable else values.copy()


def stored_texts(exchange: Exchange, name: str, marks: Sequence[ColumnMark]) -> TextFile:
    """Published strings, which can only be read."""
    utf8 = StoredColumn(exchange, name, np.dtype("|u1"), marks[0])
    offsets = StoredColumn(exchange, f"{name}o", np.dtype("<i8"), marks[1])
    return TextFile(utf8, offsets)  # type: ignore[arg-type]


def stored_run(exchange: Exchange, folder: str, mark: RunMark, layout: RunLayout, tables: Mapping[str, Array]) -> ReadableRun:
    """A published run. `tables` replace the codes of some parts."""
    run, marks = ReadableRun(layout), iter(mark.files)

    def column(part: str, dtype: np.dtype[Any] | None) -> Any:
        name, of_file = f"{folder}/run{mark.number}.{part}", next(marks)
        if dtype is None:
            return stored_texts(exchange, name, of_file)
        return StoredColumn(exchange, name, dtype, of_file[0], tables.get(part))

    run.open_files(column)
    run.num_series, run.num_steps = run.keys.rows, run.step[0].rows
    return run

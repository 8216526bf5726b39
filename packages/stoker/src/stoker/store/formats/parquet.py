"""Parquet: row groups are decoded page by page; page checksums are verified where they exist."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from stoker._text import readable_bytes
from stoker.errors import SourceTooLargeError
from stoker.store.formats.base import Chunk, FileSource, RowLocation, Task, decoded_schema, decoding, row_chunk

_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
_TEXT_WIDTH = 16
_PAGE_SHARE = 2  # a page of every column is held while a row group is read, so a column takes more than one of text
_MOST_ROWS = 1 << 20  # of a chunk
_BUFFER_BYTES = 1 << 18  # a column is read in parts of this size, not a row group at a time


class ParquetSource(FileSource):
    """One Parquet file. A position is a number of rows."""

    @cached_property
    def _metadata(self) -> pq.FileMetaData:
        # A large footer is refused: decoded, it takes many times its size.
        with self.path.open("rb") as file:
            file.seek(max(0, self.num_bytes - 8))
            footer_bytes = int.from_bytes(file.read(4), "little")
        most = self.limits.line_bytes
        if most < footer_bytes <= self.num_bytes:
            raise SourceTooLargeError(
                f"{self.path} has a footer of {readable_bytes(footer_bytes)}; at most {readable_bytes(most)} can be read. "
                "Pass a larger Resources(memory=), or write the file with fewer columns or larger row groups.",
                parameter="memory",
            )
        with decoding(self.path, "Parquet"):
            return pq.read_metadata(self._opened())

    def _opened(self) -> Path | BinaryIO:
        """What Arrow reads: a path, or an open object of object storage."""
        return self.path if isinstance(self.path, Path) else self.path.open("rb")

    @property
    def num_rows(self) -> int:
        """Rows according to the footer."""
        return int(self._metadata.num_rows)

    num_positions = num_rows

    def schema(self) -> pa.Schema:
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        with decoding(self.path, "Parquet"):
            return decoded_schema(self._metadata.schema.to_arrow_schema())

    def borders(self) -> list[int]:
        """The first row of each row group."""
        rows = [self._metadata.row_group(i).num_rows for i in range(self._metadata.num_row_groups)]
        return [0, *itertools.accumulate(rows[:-1])] if rows else [0]

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        names = self.schema().names if schema is None else schema.names
        if len(names) > (most := self.limits.columns // _PAGE_SHARE):
            raise SourceTooLargeError(
                f"{self.path} has {len(names):,} columns to read; at most {most:,} can be read with this Resources(memory=). "
                "Pass a larger one, or fewer columns=[...].",
                parameter="memory",
            )
        if self._is_small(names, chunk_bytes):
            if start.position < self.num_rows and start.stop != 0:  # a part ends where a row group does
                yield partial(self._whole, names, start.position, chunk_bytes)
            return
        file, row = self._open(names, chunk_bytes), 0
        for group in range(self._metadata.num_row_groups):
            rows = self._metadata.row_group(group).num_rows
            if start.stop is not None and row >= start.stop:
                return
            if row + rows > start.position:
                for table, begin in self._tables(file, group, names, row, start.position, chunk_bytes):
                    yield partial(row_chunk, table, begin)
            row += rows

    def _is_small(self, names: list[str], chunk_bytes: int) -> bool:
        """Whether the file is one chunk of numbers: then it is opened by its task, and several are decoded at a time."""
        are_numbers = all(pa.types.is_primitive(self._schema.field(name).type) for name in names)
        if self._metadata.num_row_groups != 1 or not are_numbers or self.num_rows > _MOST_ROWS:
            return False
        return self.num_rows * self._row_bytes(None, 0, names) <= chunk_bytes

    def _whole(self, names: list[str], start: int, chunk_bytes: int) -> Chunk:
        """The chunk of a small file."""
        parts = list(self._tables(self._open(names, chunk_bytes), 0, names, 0, start, chunk_bytes))
        return row_chunk(pa.concat_tables([table for table, _ in parts]), parts[0][1])

    def _open(self, names: list[str], chunk_bytes: int) -> pq.ParquetFile:
        with decoding(self.path, "Parquet"):
            # Texts come as dictionaries: they are few, repeated, and far smaller that way.
            texts = [field.name for field in self.schema() if field.name in names and pa.types.is_string(field.type)]
            return pq.ParquetFile(
                self._opened(),
                metadata=self._metadata,
                page_checksum_verification=True,
                read_dictionary=texts,
                pre_buffer=False,
                buffer_size=min(_BUFFER_BYTES, max(8 * chunk_bytes // max(len(names), 1), 4 << 10)),
            )

    def _tables(
        self, file: pq.ParquetFile, group: int, names: list[str], row: int, start: int, chunk_bytes: int
    ) -> Iterator[tuple[pa.Table, int]]:
        """Parts of one row group that begins at `row`, without the rows before `start`, and the row each begins at."""
        end = row + self._metadata.row_group(group).num_rows
        with decoding(self.path, "Parquet"):
            batch_rows = max(1, min(chunk_bytes // self._row_bytes(file, group, names), _MOST_ROWS))
        batches = file.iter_batches(batch_rows, row_groups=[group], columns=names, use_threads=True)
        while True:
            with decoding(self.path, "Parquet"):
                batch = next(batches, None)
                if batch is None:
                    break
                batch.validate(full=True)
            begin = max(row, min(start, row + batch.num_rows))
            part = batch.slice(begin - row)
            row += batch.num_rows
            if part.num_rows:
                yield pa.Table.from_batches([part]).select(names), begin
        if row != end:
            raise self.invalid(f"is damaged: row group {group + 1} ends at row {row:,}, but {end:,} is expected.")

    def _row_bytes(self, file: pq.ParquetFile | None, group: int, names: list[str]) -> int:
        """Bytes of a decoded row. The size in the footer is that before RLE decoding: it is right for strings only."""
        metadata = self._metadata.row_group(group)
        num_rows = max(int(metadata.num_rows), 1)
        fields = [self._schema.field(name) for name in names]
        flat = sum(_width(field.type) for field in fields)
        share = len(names) / max(len(self._schema), 1)
        lists = {field.name for field in fields if pa.types.is_nested(field.type)}
        values = self._list_bytes(file, group, lists) if lists and file is not None else 0
        return max(1, flat + values // num_rows, int(metadata.total_byte_size * share) // num_rows)

    def _list_bytes(self, file: pq.ParquetFile, group: int, names: set[str]) -> int:
        """Bytes of all values in list columns, from their counts."""
        # For the counts of a damaged column Arrow ends the process; for a row of it, it raises: so read a row first.
        next(file.iter_batches(1, row_groups=[group], columns=sorted(names)), None)
        metadata, schema = self._metadata.row_group(group), self._metadata.schema
        # A column of the file is one of the named columns, or nested in one; names may contain dots.
        paths = [f"{schema.column(i).path}." for i in range(metadata.num_columns)]
        columns = [metadata.column(i) for i, path in enumerate(paths) if any(path.startswith(f"{name}.") for name in names)]
        return int(sum(column.num_values * _WIDTHS.get(column.physical_type, _TEXT_WIDTH) for column in columns))


def _width(kind: pa.DataType) -> int:
    """Bytes of one value; of strings and lists, without their content."""
    try:
        return max(int(kind.bit_width) // 8, 1)
    except ValueError:
        return _TEXT_WIDTH

"""`.npz` archives: each array is a column, and all are streamed side by side.

Arrays of one axis are steps; beside arrays of two axes, which are a series a row, they are a value a series. Archives are
hostile input: a member must hold exactly the bytes that its own header declares, so nothing is unpacked beyond that.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from stoker.errors import SourceEmpty, SourceInvalid, SourceTooLarge, StokerError
from stoker.store.sources.npy_header import Header, read_header, to_arrow, to_lists
from stoker.store.sources.source import Chunk, Place, Source, Task, decoding

MAX_MEMBERS = 4096
MAX_FORTRAN_BYTES = 256 << 20
_END_RECORD = struct.Struct("<4s4H2LH")
_MANY = 0xFFFF
"""Stands for a number that does not fit."""
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)

Array = np.ndarray[Any, Any]


class NpzSource(Source):
    """One `.npz` archive. A position is a number of rows."""

    path: Path

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = path.stat().st_size
        if self.num_bytes == 0:
            raise SourceEmpty(f"{path} is empty (0 bytes). Remove it, or leave it out of the pattern.")

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self._unzipping(), zipfile.ZipFile(self.path) as archive:
            yield archive

    @contextmanager
    def _unzipping(self) -> Iterator[None]:
        try:
            with decoding(self.path, "a .npz archive"):
                yield
        except StokerError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise SourceInvalid(
                f"{self.path} is damaged or not a .npz archive: {str(error)[:200]}. Fetch or make it again."
            ) from error

    @cached_property
    def _headers(self) -> dict[str, Header]:
        headers: dict[str, Header] = {}
        with self._archive() as archive:
            members = archive.infolist()
            self._check_directory(len(members))
            most = min(MAX_MEMBERS, self.limits.columns)
            if len(members) > most:
                more = " Give more --memory." if most < MAX_MEMBERS else ""
                raise SourceTooLarge(f"{self.path} holds {len(members):,} arrays; at most {most:,} can be read.{more}")
            for member in members:
                column = member.filename.removesuffix(".npy")
                if column == member.filename or member.compress_type not in _METHODS or member.flag_bits & 1:
                    raise SourceInvalid(
                        f"{self._of(member.filename)} is not a plain or deflated .npy array. Save it again with np.savez."
                    )
                if column in headers:
                    raise SourceInvalid(f"{self._of(member.filename)} is in the archive twice. Make the archive again.")
                with archive.open(member) as file:
                    headers[column] = read_header(cast(BinaryIO, file), member.file_size, self._of(member.filename))
        if not headers:
            raise SourceEmpty(f"{self.path} holds no array. Remove it, or leave it out of the pattern.")
        rows = {header.rows for header in headers.values()}
        if len(rows) > 1:
            shapes = ", ".join(f"{name} {header.shape}" for name, header in list(headers.items())[:8])
            raise SourceInvalid(f"{self.path} holds arrays of different first axes: {shapes}. Save them as one file each.")
        return headers

    def _check_directory(self, found: int) -> None:
        """Compare the number of members with that in the archive's last record, so that none is lost unseen."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.num_bytes - _END_RECORD.size))
            record = file.read()
        if len(record) < _END_RECORD.size or not record.startswith(b"PK\x05\x06"):
            raise SourceInvalid(f"{self.path} does not end as np.savez ends an archive. Fetch or make it again.")
        expected = _END_RECORD.unpack(record)[4]
        if expected not in (found, _MANY):
            raise SourceInvalid(f"{self.path} is damaged: {found:,} arrays found, {expected:,} expected. Fetch or make it again.")

    def _of(self, member: str) -> str:
        return f"{member!r} in {self.path}"

    @property
    def num_rows(self) -> int:
        """Rows by the archive's own account."""
        return next(iter(self._headers.values())).rows

    @property
    def num_positions(self) -> int:  # type: ignore[override]
        """Positions are rows."""
        return self.num_rows

    def schema(self) -> pa.Schema:
        return pa.schema([(name, _type(header)) for name, header in self._headers.items()])

    def read(self, schema: pa.Schema | None, *, start: Place, chunk_bytes: int) -> Iterator[Task]:
        headers = self._headers
        names = list(headers) if schema is None else schema.names
        step = max(1, chunk_bytes // max(1, sum(headers[name].row_bytes for name in names)))
        with ExitStack() as stack:
            archive = stack.enter_context(self._archive())
            streams = {}
            with self._unzipping():
                for name in names:
                    streams[name] = self._rows(stack.enter_context(archive.open(f"{name}.npy")), name, start.position, step)
            for row in range(start.position, self.num_rows, step):
                with self._unzipping():
                    arrays = {name: next(stream) for name, stream in streams.items()}
                yield partial(self._chunk, arrays, row)

    def _chunk(self, arrays: dict[str, Array], row: int) -> Chunk:
        columns = {}
        for name, values in arrays.items():
            columns[name] = (to_lists if values.ndim == 2 else to_arrow)(values, self._of(f"{name}.npy"))
        end = row + len(next(iter(arrays.values())))
        return Chunk(pa.table(columns), Place(row, row), Place(end, end))

    def _rows(self, file: Any, name: str, start: int, step: int) -> Iterator[Array]:
        """Parts of `step` rows. With the last one the checksum of the member is compared."""
        header = self._headers[name]
        self._take(file, name, header.offset)
        if len(header.shape) == 2 and header.fortran_order and min(header.shape) > 1:
            yield from self._fortran_rows(file, name, start, step)
        else:
            left = start * header.row_bytes
            while left:
                left -= len(self._take(file, name, min(left, 1 << 20)))
            for row in range(start, header.rows, step):
                count = min(step, header.rows - row)
                data = self._take(file, name, count * header.row_bytes)
                yield np.frombuffer(data, dtype=header.dtype).reshape(count, *header.shape[1:])

    def _fortran_rows(self, file: Any, name: str, start: int, step: int) -> Iterator[Array]:
        """An array whose columns lie one behind the other has no row before its last column is read: it is held whole."""
        header = self._headers[name]
        if header.values_bytes > MAX_FORTRAN_BYTES:
            raise SourceTooLarge(
                f"{self._of(f'{name}.npy')} is in Fortran order and has {header.values_bytes:,} bytes; "
                f"at most {MAX_FORTRAN_BYTES:,} can be turned. Save it with np.ascontiguousarray, or as a .npy file."
            )
        whole = np.frombuffer(self._take(file, name, header.values_bytes), dtype=header.dtype).reshape(header.shape, order="F")
        for row in range(start, header.rows, step):
            yield whole[row : row + step]

    def _take(self, file: Any, name: str, num_bytes: int) -> bytes:
        data = bytes(file.read(num_bytes))
        if len(data) < num_bytes:
            raise SourceInvalid(
                f"{self._of(f'{name}.npy')} is cut off: {len(data):,} bytes found, {num_bytes:,} expected. Fetch or make it again."
            )
        return data


def _type(header: Header) -> pa.DataType:
    return header.arrow_type if len(header.shape) == 1 else pa.large_list(header.arrow_type)

"""NumPy files: `NpySource` reads `.npy` arrays by position, `NpzSource` streams the arrays of `.npz` archives side by side.

Headers are parsed strictly: plain numbers of known size, and exactly as many bytes as declared. No code ever runs: object arrays are
refused by their dtype, before any value is read.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
from numpy.lib import format as npy_format

from stoker._types import Array
from stoker.errors import BadValueError, SourceEmptyError, SourceInvalidError, SourceTooLargeError, StokerError
from stoker.store.arrow import from_numpy
from stoker.store.formats.base import Chunk, FileSource, RowLocation, Task, decoding, read_fully, row_chunk

MAX_HEADER_BYTES = 64 << 10
_NUMBERS = frozenset("b1 i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8".split())
_REFUSED = {"O": "Python objects, which could run code", "U": "strings", "S": "strings", "V": "records", "c": "complex numbers"}


@dataclass(frozen=True, slots=True)
class Header:
    """The type as it is in the file, the shape, and where values begin."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fortran_order: bool
    offset: int

    @property
    def values_bytes(self) -> int:
        """Bytes of all values."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def arrow_type(self) -> pa.DataType:
        """Type of one row: a value, or a list of values."""
        value = pa.from_numpy_dtype(self.dtype.newbyteorder("="))
        return value if len(self.shape) == 1 else pa.large_list(value)


def read_header(file: BinaryIO, num_bytes: int, label: str) -> Header:
    """Parse the header at the start of `file`, which has `num_bytes` in total."""

    def invalid(problem: str) -> SourceInvalidError:
        return SourceInvalidError(f"{label} {problem}")

    magic = file.read(npy_format.MAGIC_LEN)
    if magic[:6] != npy_format.MAGIC_PREFIX or len(magic) < npy_format.MAGIC_LEN:
        raise invalid(f"is not a .npy file: it begins with {magic[:6]!r}, expected {npy_format.MAGIC_PREFIX!r}.")
    version = (magic[6], magic[7])
    if version not in ((1, 0), (2, 0)):
        raise invalid(f"has .npy version {version[0]}.{version[1]}; 1.0 and 2.0 are read. Save it again with plain numbers.")
    length_bytes = 2 if version == (1, 0) else 4
    prefix = file.read(length_bytes)
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise invalid(f"declares a header of {length:,} bytes; at most {MAX_HEADER_BYTES:,} are read. Is it damaged?")
    text = file.read(length)
    if len(prefix) + len(text) < length_bytes + length:
        raise invalid(f"ends inside its header, after {len(magic) + len(prefix) + len(text):,} bytes. Fetch or make it again.")
    parse: Any = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
    try:
        shape, fortran_order, dtype = parse(io.BytesIO(prefix + text), max_header_size=MAX_HEADER_BYTES)
    except Exception as error:  # NumPy's parser raises many kinds, SyntaxError and RecursionError among them
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise invalid(f"has a damaged .npy header: {reason}") from error
    header = Header(dtype, tuple(shape), bool(fortran_order), len(magic) + length_bytes + length)
    if dtype.kind in "mM":
        unit = np.datetime_data(dtype)
        if unit[0] not in ("s", "ms", "us", "ns") or unit[1] != 1:
            raise invalid(f"holds {dtype}; times are read in s, ms, us or ns. Save it again with .astype('datetime64[ns]').")
    elif dtype.str[1:] not in _NUMBERS or dtype.names is not None or dtype.subdtype is not None:
        what = _REFUSED.get(dtype.kind, "values that are not plain numbers")
        raise invalid(f"holds {what} (dtype {str(dtype)[:60]}); expected numbers. Save it again as float32, int64 or the like.")
    if any(isinstance(length, bool) or length < 0 for length in shape):
        raise invalid(f"has a damaged .npy header: shape {shape}.")
    expected = header.offset + header.values_bytes
    if num_bytes != expected:
        state = "cut off" if num_bytes < expected else "longer than declared"
        raise invalid(f"is {state}: {num_bytes:,} bytes found, {expected:,} expected for {dtype} {shape}. Fetch or make it again.")
    if len(shape) not in (1, 2):
        raise invalid(f"has {len(shape)} axes {shape}; expected 1 (steps) or 2 (series, steps). Save it again with another shape.")
    if shape[0] and not header.values_bytes:
        raise SourceEmptyError(f"{label} has the shape {shape}, so it holds no value.")
    return header


def to_arrow(values: Array, label: str) -> pa.Array:
    """An array of either byte order as an Arrow array with the same bits; NaT becomes null. Of a 2-D array, each row is a list."""
    if values.ndim == 2:
        offsets = np.arange(len(values) + 1, dtype=np.int64) * values.shape[1]
        return pa.LargeListArray.from_arrays(from_numpy(offsets), to_arrow(values.reshape(-1), label))
    native = np.ascontiguousarray(values, dtype=values.dtype.newbyteorder("="))
    if native.dtype.kind == "b":
        if native.size and int(native.view(np.uint8).max()) > 1:
            raise BadValueError(f"{label} holds booleans that are neither 0 nor 1. Is it damaged?")
        return pa.array(native)
    return pa.array(native) if native.dtype.kind in "mM" else from_numpy(native)


# `.npy`: a 1-D array is one series of steps, in the column "value". A 2-D array has one series per row, as lists in the column "value";
# or, with `wide`, it is a table whose columns "c0", "c1", … are the second axis. Bits are kept as they are in the file.

COLUMN = "value"
MAX_COLUMNS = 1 << 20


class NpySource(FileSource):
    """One `.npy` file. A position is a number of rows."""

    def __init__(self, path: Path, name: str, *, wide: bool = False) -> None:
        super().__init__(path, name)
        self.wide = wide

    @cached_property
    def _header(self) -> Header:
        with decoding(self.path, "a .npy array"), self.path.open("rb") as file:
            return read_header(file, self.num_bytes, self.label)

    @property
    def num_rows(self) -> int:
        """Rows according to the header."""
        return self._header.shape[0]

    num_positions = num_rows

    @property
    def _is_table(self) -> bool:
        return self.wide and len(self._header.shape) == 2

    def schema(self) -> pa.Schema:
        kind = self._header.arrow_type
        if not self._is_table:
            return pa.schema([(COLUMN, kind)])
        width = self._header.shape[1]
        if width > MAX_COLUMNS:
            raise SourceTooLargeError(
                f"{self.path} has {width:,} columns; at most {MAX_COLUMNS:,} can be read. Is it [steps, columns]?"
            )
        return pa.schema([(f"c{i}", kind.value_type) for i in range(width)])

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        header = self._header
        wanted = [int(name[1:]) for name in schema.names] if schema is not None and self._is_table else None
        step = max(1, chunk_bytes // max(header.row_bytes, 1))
        for row in range(start.position, self.num_rows, step):
            yield partial(self._chunk, row, min(row + step, self.num_rows), wanted)

    def _chunk(self, begin: int, end: int, wanted: list[int] | None) -> Chunk:
        with decoding(self.path, "a .npy array"):
            values = self._read_rows(begin, end, wanted)
            if not self._is_table:
                table = pa.table({COLUMN: to_arrow(values, self.label)})
            else:
                numbers = range(self._header.shape[1]) if wanted is None else wanted
                table = pa.table({f"c{c}": to_arrow(values[:, i], self.label) for i, c in enumerate(numbers)})
        return row_chunk(table, begin)

    def _read_rows(self, begin: int, end: int, wanted: list[int] | None) -> Array:
        header, size = self._header, self._header.dtype.itemsize

        def read(first: int, shape: tuple[int, ...]) -> Array:
            data = bytearray(math.prod(shape) * size)
            read_fully(file.fileno(), memoryview(data), header.offset + first * size, self.path)
            return np.frombuffer(data, dtype=header.dtype).reshape(shape)

        with self.path.open("rb") as file:
            if len(header.shape) == 2 and header.fortran_order:
                columns = range(header.shape[1]) if wanted is None else wanted
                values = np.empty((end - begin, len(columns)), dtype=header.dtype)
                for i, column in enumerate(columns):
                    values[:, i] = read(column * header.shape[0] + begin, (end - begin,))
                return values
            values = read(begin * math.prod(header.shape[1:]), (end - begin, *header.shape[1:]))
        return values if wanted is None else values[:, wanted]


# `.npz`: each array is a column. 1-D arrays are steps; beside 2-D arrays, which have one series per row, they have one value per series.
# Archives may be hostile: a member must hold exactly the bytes that its own header declares, so nothing is unpacked beyond that.

MAX_MEMBERS = 4096
MAX_FORTRAN_BYTES = 256 << 20
_END_RECORD = struct.Struct("<4s4H2LH")
_MANY = 0xFFFF  # stands for a count that does not fit
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class NpzSource(FileSource):
    """One `.npz` archive. A position is a number of rows."""

    @contextmanager
    def _unzipping(self) -> Iterator[None]:
        try:
            with decoding(self.path, "a .npz archive"):
                yield
        except StokerError:
            raise
        except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:
            raise self.invalid(f"is damaged or not a .npz archive: {str(error)[:200]}. Fetch or make it again.") from error

    @cached_property
    def _headers(self) -> dict[str, Header]:
        headers: dict[str, Header] = {}
        with self._unzipping(), zipfile.ZipFile(self.path) as archive:
            members = archive.infolist()
            self._check_directory(len(members))
            most = min(MAX_MEMBERS, self.limits.columns)
            if len(members) > most:
                more = " Pass a larger Resources(memory=)." if most < MAX_MEMBERS else ""
                raise SourceTooLargeError(f"{self.path} holds {len(members):,} arrays; at most {most:,} can be read.{more}")
            for member in members:
                column = member.filename.removesuffix(".npy")
                if column == member.filename or member.compress_type not in _METHODS or member.flag_bits & 1:
                    raise SourceInvalidError(
                        f"{self._of(member.filename)} is not a plain or deflated .npy array. Save it again with np.savez."
                    )
                if column in headers:
                    raise SourceInvalidError(f"{self._of(member.filename)} is in the archive twice. Make the archive again.")
                with archive.open(member) as file:
                    headers[column] = read_header(cast(BinaryIO, file), member.file_size, self._of(member.filename))
        if not headers:
            raise SourceEmptyError(f"{self.path} holds no array. Remove it, or leave it out of the pattern.")
        if len({header.shape[0] for header in headers.values()}) > 1:
            shapes = ", ".join(f"{name} {header.shape}" for name, header in list(headers.items())[:8])
            raise self.invalid(f"holds arrays of different first axes: {shapes}. Save them as one file each.")
        return headers

    def _check_directory(self, found: int) -> None:
        """Compare the number of members with that in the last record of the archive, so that none is lost unnoticed."""
        with self.path.open("rb") as file:
            file.seek(max(0, self.num_bytes - _END_RECORD.size))
            record = file.read()
        if len(record) < _END_RECORD.size or not record.startswith(b"PK\x05\x06"):
            raise self.invalid("does not end as np.savez ends an archive. Fetch or make it again.")
        expected = _END_RECORD.unpack(record)[4]
        if expected not in (found, _MANY):
            raise self.invalid(f"is damaged: {found:,} arrays found, {expected:,} expected. Fetch or make it again.")

    def _of(self, member: str) -> str:
        return f"{member!r} in {self.path}"

    @property
    def num_rows(self) -> int:
        """Rows according to the headers."""
        return next(iter(self._headers.values())).shape[0]

    num_positions = num_rows

    def schema(self) -> pa.Schema:
        return pa.schema([(name, header.arrow_type) for name, header in self._headers.items()])

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        headers = self._headers
        names = list(headers) if schema is None else schema.names
        step = max(1, chunk_bytes // max(1, sum(headers[name].row_bytes for name in names)))
        with ExitStack() as stack:
            streams = {}
            with self._unzipping():
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                for name in names:
                    streams[name] = self._rows(stack.enter_context(archive.open(f"{name}.npy")), name, start.position, step)
            for row in range(start.position, self.num_rows, step):
                with self._unzipping():
                    arrays = {name: next(stream) for name, stream in streams.items()}
                yield partial(self._chunk, arrays, row)

    def _chunk(self, arrays: dict[str, Array], row: int) -> Chunk:
        return row_chunk(pa.table({name: to_arrow(values, self._of(f"{name}.npy")) for name, values in arrays.items()}), row)

    def _rows(self, file: Any, name: str, start: int, step: int) -> Iterator[Array]:
        """Parts of `step` rows. With the last one the checksum of the member is compared."""
        header = self._headers[name]
        self._take(file, name, header.offset)
        if len(header.shape) == 2 and header.fortran_order and min(header.shape) > 1:
            # It has no complete row before its last column is read: it is held in memory.
            if header.values_bytes > MAX_FORTRAN_BYTES:
                raise SourceTooLargeError(
                    f"{self._of(f'{name}.npy')} is in Fortran order and has {header.values_bytes:,} bytes; "
                    f"at most {MAX_FORTRAN_BYTES:,} can be transposed. Save it with np.ascontiguousarray, or as a .npy file."
                )
            whole = np.frombuffer(self._take(file, name, header.values_bytes), dtype=header.dtype).reshape(header.shape, order="F")
            yield from (whole[row : row + step] for row in range(start, header.shape[0], step))
            return
        left = start * header.row_bytes
        while left:
            left -= len(self._take(file, name, min(left, 1 << 20)))
        for row in range(start, header.shape[0], step):
            count = min(step, header.shape[0] - row)
            data = self._take(file, name, count * header.row_bytes)
            yield np.frombuffer(data, dtype=header.dtype).reshape(count, *header.shape[1:])

    def _take(self, file: Any, name: str, num_bytes: int) -> bytes:
        data = bytes(file.read(num_bytes))
        if len(data) < num_bytes:
            raise SourceInvalidError(
                f"{self._of(f'{name}.npy')} is cut off: {len(data):,} bytes found, {num_bytes:,} expected. Fetch or make it again."
            )
        return data

"""Arrow: `ArrowSource` reads IPC files and streams, `HuggingFaceSource` the folders of `datasets`.

Batches of files are validated in full.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from stoker.errors import SourceEmptyError, SourceInvalidError
from stoker.store.formats.base import (
    Chunk,
    DataSource,
    FileSource,
    RowLocation,
    Task,
    batch_chunks,
    decoded_schema,
    decoding,
    inside,
    row_chunk,
)

_FILE_MAGIC = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ArrowSource(FileSource):
    """One IPC file. A position is a number of rows."""

    def schema(self) -> pa.Schema:
        with decoding(self.path, "Arrow IPC"):
            return decoded_schema(self._open().schema)

    def _open(self) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
        with self.path.open("rb") as file:
            magic = file.read(len(_FILE_MAGIC))
        if magic.startswith(b"FEA1"):
            raise self.invalid("is Feather version 1, which is no longer read. Write it again as Feather version 2.")
        if magic != _FILE_MAGIC:
            refuse_cut_stream(self.path)
        # Mapped, so that a file of one huge batch does not have to fit into memory.
        mapped = pa.memory_map(str(self.path)) if isinstance(self.path, Path) else pa.PythonFile(self.path.open("rb"), mode="r")
        return pa.ipc.open_file(mapped) if magic == _FILE_MAGIC else pa.ipc.open_stream(mapped)

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return batch_chunks(self._batches(), schema, start=start, chunk_bytes=chunk_bytes)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with decoding(self.path, "Arrow IPC"):
            reader = self._open()
            stream = isinstance(reader, pa.RecordBatchStreamReader)
            batches = iter(reader) if stream else (reader.get_batch(i) for i in range(reader.num_record_batches))
        while True:
            with decoding(self.path, "Arrow IPC"):
                batch = next(batches, None)
                if batch is None:
                    return
                batch.validate(full=True)
            yield batch


def refuse_cut_stream(path: Path) -> None:
    """A stream that is cut between two batches reads like a shorter one; only its end mark shows that it is complete."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_STREAM_END)))
        end = file.read()
    if end != _STREAM_END:
        raise SourceInvalidError(
            f"{path} has no end mark after {size:,} bytes: it is cut off, or not an Arrow stream. Fetch or make it again."
        )


# Hugging Face `datasets` folders, as `save_to_disk` writes them: `state.json` and Arrow streams. `datasets` itself is not needed.
# Compressed batches are refused: `save_to_disk` writes none, and their unpacked size has no bound.

STATE = "state.json"
DICT = "dataset_dict.json"
MAX_STATE_BYTES = 64 << 20


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct):
    data_files: list[_File] = msgspec.field(name="_data_files")
    indices_files: list[Any] | None = msgspec.field(name="_indices_files", default=None)
    indices: list[Any] | None = msgspec.field(name="_indices_data_files", default=None)


class _Splits(msgspec.Struct):
    splits: list[str]


class HuggingFaceSource(DataSource):
    """One folder. A position is a number of rows."""

    path: Path

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = sum(file.stat().st_size for file in path.glob("*.arrow"))

    @cached_property
    def _streams(self) -> list[Path]:
        """The Arrow files in order."""
        if (self.path / DICT).exists():
            splits = _load(inside(self.path, DICT, named_by=""), _Splits).splits
            shown = ", ".join(repr(split) for split in splits[:20])
            example = str(self.path / splits[0]) if splits else f"{self.path}/train"
            raise self.invalid(f"holds the splits {shown}, each a data set of its own. Give one of them, like {example}.")
        state = _load(inside(self.path, STATE, named_by=""), _State)
        if state.indices_files or state.indices:
            raise SourceInvalidError(
                f"{self.path / STATE} names files of indices. Call flatten_indices() on the data set and save it again."
            )
        if not state.data_files:
            raise SourceEmptyError(f"{self.path / STATE} names no data file. Remove the folder, or leave it out of the pattern.")
        return [inside(self.path, file.filename, named_by=STATE) for file in state.data_files]

    def schema(self) -> pa.Schema:
        kinds = self._stored.types
        lists = [pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind) for kind in kinds]
        kinds = [pa.large_list(kind.value_type) if is_list else kind for kind, is_list in zip(kinds, lists, strict=True)]
        return pa.schema(list(zip(self._stored.names, kinds, strict=True)))

    @cached_property
    def _stored(self) -> pa.Schema:
        """The columns of the files, which must agree."""
        first, *others = [self._schema_of(path) for path in self._streams]
        if not first.names:
            raise SourceEmptyError(f"{self._streams[0]} has no columns. Remove the folder, or leave it out of the pattern.")
        for path, schema in zip(self._streams[1:], others, strict=True):
            if not schema.equals(first):
                raise SourceInvalidError(
                    f"{path} has other columns than {self._streams[0].name}: {schema.names} against {first.names}."
                )
        if any(pa.types.is_dictionary(kind) for kind in first.types):
            raise SourceInvalidError(
                f"{self._streams[0]} has dictionary columns, which are not read here. Cast them to strings and save again."
            )
        return first

    def _schema_of(self, path: Path) -> pa.Schema:
        if path.stat().st_size == 0:
            raise SourceEmptyError(f"{path} is empty (0 bytes). Fetch or make the folder again.")
        refuse_cut_stream(path)
        with decoding(path, "an Arrow stream"):
            message = next(_messages(path), None)
            if message is None or message.type != "schema":
                raise SourceInvalidError(f"{path} does not begin with a schema. Is it an Arrow stream?")
            # Of extension types, which only `datasets` knows, the storage type.
            schema = pa.ipc.read_schema(message)
            kinds = [kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind for kind in schema.types]
            return decoded_schema(pa.schema(list(zip(schema.names, kinds, strict=True))))

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        wanted = self.schema() if schema is None else pa.schema([self.schema().field(name) for name in schema.names])
        row = 0
        for path in self._streams:
            for batch in self._batches(path):
                if row + batch.num_rows > start.row:
                    with decoding(path, "an Arrow stream"):
                        batch.validate(full=True)
                    skip = max(start.row - row, 0)
                    rows_each = max(1, batch.num_rows * chunk_bytes // max(batch.nbytes, 1))
                    for begin in range(skip, batch.num_rows, rows_each):
                        part = batch.slice(begin, rows_each)
                        yield partial(_chunk, path, part, wanted, row + begin)
                row += batch.num_rows

    def _batches(self, path: Path) -> Iterator[pa.RecordBatch]:
        schema: pa.Schema | None = None
        messages = _messages(path)
        while True:
            with decoding(path, "an Arrow stream"):
                message = next(messages, None)
                if message is None:
                    return
                if schema is None:
                    schema = pa.ipc.read_schema(message)
                    continue
                if message.type != "record batch" or _is_compressed(message.metadata):
                    raise SourceInvalidError(
                        f"{path} holds a compressed or unexpected message. Save the data set again with save_to_disk."
                    )
                batch = pa.ipc.read_record_batch(message, schema)
            yield batch


def _load(path: Path, kind: type[Any]) -> Any:
    size = path.stat().st_size
    if size == 0:
        raise SourceEmptyError(f"{path} is empty (0 bytes). Fetch or make the folder again.")
    if size > MAX_STATE_BYTES:
        raise SourceInvalidError(f"{path} has {size:,} bytes; at most {MAX_STATE_BYTES:,} are expected. Is it what its name says?")
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SourceInvalidError(f"{path} is not what save_to_disk writes: {error}.") from error


def _messages(path: Path) -> Iterator[pa.ipc.Message]:
    # Mapped, so that a batch that is larger than a chunk does not have to fit into memory.
    return iter(pa.ipc.MessageReader.open_stream(pa.memory_map(str(path))))


def _is_compressed(metadata: pa.Buffer) -> bool:
    """Whether a record batch declares compressed buffers: field 3 of the table under field 2 of the message."""
    data = memoryview(metadata)
    try:
        header = _field(data, struct.unpack_from("<I", data, 0)[0], 2)
        return header is not None and _field(data, header + struct.unpack_from("<I", data, header)[0], 3) is not None
    except struct.error as error:
        raise ValueError(f"a message points out of itself ({error})") from error


def _field(data: memoryview, table: int, number: int) -> int | None:
    """The position of a field of a flatbuffer table; None if it is absent."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    place = 4 + 2 * number
    if vtable < 0 or place + 2 > struct.unpack_from("<H", data, vtable)[0]:
        return None
    offset = struct.unpack_from("<H", data, vtable + place)[0]
    return table + int(offset) if offset else None


def _chunk(path: Path, batch: pa.RecordBatch, wanted: pa.Schema, row: int) -> Chunk:
    columns = {}
    with decoding(path, "an Arrow stream"):
        for field in wanted:
            array = batch.column(batch.schema.get_field_index(field.name))
            array = array.storage if isinstance(array, pa.ExtensionArray) else array
            columns[field.name] = array.cast(field.type)
    return row_chunk(pa.table(columns), row)

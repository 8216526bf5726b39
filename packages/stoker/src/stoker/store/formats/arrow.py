"""Arrow: `ArrowSource` reads IPC files and streams, `HuggingFaceSource` the folders of `datasets`.

Batches of files are validated in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from stoker.errors import SourceEmptyError, SourceInvalidError
from stoker.store.formats.base import (
    DataSource,
    FileSource,
    RowLocation,
    Task,
    batch_chunks,
    decoded_schema,
    decoding,
    inside,
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
            self._refuse_cut_stream()
        # Mapped, so that a file of one huge batch does not have to fit into memory.
        mapped = pa.memory_map(str(self.path)) if isinstance(self.path, Path) else pa.PythonFile(self.path.open("rb"), mode="r")
        return pa.ipc.open_file(mapped) if magic == _FILE_MAGIC else pa.ipc.open_stream(mapped)

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        return batch_chunks(self.batches(), schema, start=start, chunk_bytes=chunk_bytes)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The validated batches, in order."""
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

    def _refuse_cut_stream(self) -> None:
        """A stream that is cut between two batches reads like a shorter one; only its end mark shows that it is complete."""
        with self.path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - len(_STREAM_END)))
            end = file.read()
        if end != _STREAM_END:
            raise self.invalid(
                f"has no end mark after {size:,} bytes: it is cut off, or not an Arrow stream. Fetch or make it again."
            )


# Hugging Face `datasets` folders, as `save_to_disk` writes them: `state.json` and Arrow streams. `datasets` itself is not needed.

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
    """One folder: its Arrow files, one after the other. A position is a number of rows."""

    path: Path

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = sum(file.stat().st_size for file in path.glob("*.arrow"))

    @cached_property
    def _files(self) -> list[ArrowSource]:
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
        return [ArrowSource(inside(self.path, file.filename, named_by=STATE), file.filename) for file in state.data_files]

    def schema(self) -> pa.Schema:
        return self._schema

    @cached_property
    def _schema(self) -> pa.Schema:
        """The columns of the files, which must agree; of extension types, which only `datasets` knows, the storage type."""
        first, *others = [file.schema() for file in self._files]
        if not first.names:
            raise SourceEmptyError(f"{self._files[0].path} has no columns. Remove the folder, or leave it out of the pattern.")
        for file, schema in zip(self._files[1:], others, strict=True):
            if not schema.equals(first):
                raise file.invalid(f"has other columns than {self._files[0].name}: {schema.names} against {first.names}.")
        return pa.schema([field.with_type(getattr(field.type, "storage_type", field.type)) for field in first])

    def read(self, schema: pa.Schema | None, *, start: RowLocation, chunk_bytes: int) -> Iterator[Task]:
        batches = (batch.cast(self._schema) for file in self._files for batch in file.batches())
        return batch_chunks(batches, schema, start=start, chunk_bytes=chunk_bytes)


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

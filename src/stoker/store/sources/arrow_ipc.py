"""Arrow IPC files and streams (`.arrow`, `.feather`, `.ipc`), validated in full before any value is believed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from stoker.errors import SourceInvalid
from stoker.store.sources.memory import batch_chunks
from stoker.store.sources.source import Place, Source, Task, decoding

_FILE_MAGIC = b"ARROW1"
_STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class ArrowSource(Source):
    """One IPC file. A position is a number of rows."""

    path: Path

    def __init__(self, path: Path, name: str) -> None:
        self.path = path
        self.name = name
        self.num_bytes = path.stat().st_size

    def schema(self) -> pa.Schema:
        with decoding(self.path, "Arrow IPC"):
            return self._open().schema

    def _open(self) -> pa.RecordBatchFileReader | pa.RecordBatchStreamReader:
        with self.path.open("rb") as file:
            magic = file.read(len(_FILE_MAGIC))
        if magic.startswith(b"FEA1"):
            raise SourceInvalid(f"{self.path} is Feather version 1, which is no longer read. Write it again as Feather version 2.")
        if magic != _FILE_MAGIC:
            refuse_cut_stream(self.path)
        # Mapped, so that a file of one huge batch does not have to fit into memory.
        mapped = pa.memory_map(str(self.path))
        return pa.ipc.open_file(mapped) if magic == _FILE_MAGIC else pa.ipc.open_stream(mapped)

    def read(self, schema: pa.Schema | None, *, start: Place, chunk_bytes: int) -> Iterator[Task]:
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
    """A stream that is cut between two batches reads like a shorter one; only its end mark shows that it is whole."""
    with path.open("rb") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - len(_STREAM_END)))
        end = file.read()
    if end != _STREAM_END:
        raise SourceInvalid(
            f"{path} has no end mark after {size:,} bytes: it is cut off, or no Arrow stream. Fetch or make it again."
        )

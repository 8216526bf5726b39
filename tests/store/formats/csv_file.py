"""A table in text, written for a test and read: as a source, or by a pack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from stoker.store.formats.base import Chunk, RowLocation
from stoker.store.formats.csv import Csv, CsvSource
from stoker.store.pack.api import pack
from stoker.store.store import Store


class CsvFile:
    """Writes a file and reads it: as a source, or by a pack."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "table.csv"

    def source(self, content: str | bytes, **dialect: Any) -> CsvSource:
        self.path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return CsvSource(self.path, "table.csv", Csv(**dialect))

    def table(self, content: str | bytes, **dialect: Any) -> dict[str, list[Any]]:
        """All values, read with the types of the first block."""
        source = self.source(content, **dialect)
        return joined(chunks_of(source, source.schema()))

    def pack(self, content: str | bytes, **options: Any) -> Store:
        self.path.write_bytes(content if isinstance(content, bytes) else content.encode())
        fields = {name: options.pop(name) for name in list(options) if name in Csv.__dataclass_fields__}
        return pack(self.path, self.folder / "out", replace=True, csv=Csv(**fields), **options)


def chunks_of(source: CsvSource, schema: pa.Schema | None, start: RowLocation | None = None) -> list[Chunk]:
    return [task() for task in source.read(schema, start=start or RowLocation(), chunk_bytes=1 << 20)]


def joined(chunks: list[Chunk]) -> dict[str, list[Any]]:
    return pa.concat_tables([chunk.table for chunk in chunks]).to_pydict() if chunks else {}

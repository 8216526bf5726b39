"""How tests read a source: all of it, and again from behind every chunk."""

from __future__ import annotations

import io
import threading
import zipfile
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa

from stoker.store import Chunk, DataSource, RowLocation

Rows = list[dict[str, Any]]


def chunks_of(
    source: DataSource, schema: pa.Schema | None, *, chunk_bytes: int = 1 << 20, start: RowLocation | None = None
) -> list[Chunk]:
    with closing(source.read(schema, start=start or RowLocation(), chunk_bytes=chunk_bytes)) as tasks:  # type: ignore[type-var]
        return [task() for task in tasks]


def table_of(source: DataSource, *, chunk_bytes: int = 1 << 20) -> pa.Table:
    """Everything, in the types that the source says it has."""
    schema = source.schema()
    return pa.concat_tables([chunk.table for chunk in chunks_of(source, schema, chunk_bytes=chunk_bytes)] or [schema.empty_table()])


def assert_resumes(source: DataSource, *, chunk_bytes: int, least: int = 2) -> None:
    """Reading on from behind any chunk gives exactly the rest, however chunks are cut then."""
    schema = source.schema()
    chunks = chunks_of(source, schema, chunk_bytes=chunk_bytes)
    assert len(chunks) >= least, "too few chunks to prove anything"
    whole = pa.concat_tables([chunk.table for chunk in chunks])
    assert [chunk.begin for chunk in chunks[1:]] == [chunk.end for chunk in chunks[:-1]]
    for chunk in chunks:
        assert chunk.table.num_rows == chunk.end.row - chunk.begin.row > 0
        for other_bytes in (chunk_bytes, 4 * chunk_bytes):
            rest = chunks_of(source, schema, chunk_bytes=other_bytes, start=chunk.end)
            tables = [schema.empty_table(), *(one.table for one in rest)]
            assert bits(pa.concat_tables(tables)) == bits(whole.slice(chunk.end.row))


def assert_projects(source: DataSource) -> None:
    """Any columns can be asked for, in any order, and come in the types of the schema."""
    schema = source.schema()
    backwards = pa.schema(list(schema)[::-1])
    for chunk in chunks_of(source, backwards):
        assert chunk.table.schema.names == backwards.names
        assert chunk.table.schema.types == backwards.types
    for field in schema:
        for chunk in chunks_of(source, pa.schema([field])):
            assert chunk.table.schema.names == [field.name]


def assert_threads_agree(source: DataSource, *, chunk_bytes: int) -> None:
    """Tasks run at the same time, the last first, after the reader is gone, give the same as one by one."""
    schema = source.schema()
    expected = chunks_of(source, schema, chunk_bytes=chunk_bytes)
    tasks = list(source.read(schema, start=RowLocation(), chunk_bytes=chunk_bytes))
    found: dict[int, Chunk] = {}
    threads = [threading.Thread(target=lambda i=i: found.__setitem__(i, tasks[i]())) for i in reversed(range(len(tasks)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, chunk in enumerate(expected):
        assert (found[i].begin, found[i].end) == (chunk.begin, chunk.end)
        assert bits(found[i].table) == bits(chunk.table)


def bits(table: pa.Table) -> list[tuple[str, pa.DataType, str]]:
    """Contents to compare exactly: NaN equals NaN, and -0.0 is not 0.0."""
    return [(name, column.type, repr(column.to_pylist())) for name, column in zip(table.column_names, table.columns, strict=True)]


def saved(array: Any) -> bytes:
    """A `.npy` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def archive(*members: tuple[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A `.npz` file of these members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as made:
        for name, data in members:
            made.writestr(name, data)
    return file.getvalue()

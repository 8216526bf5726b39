"""Arrow IPC files and streams: read alike, in parts, and never believed before they are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from tests.store.formats.reading import assert_projects, assert_resumes, assert_threads_agree, table_of

from stoker.errors import SourceError, SourceInvalidError
from stoker.store.formats.arrow import ArrowSource
from stoker.store.pack.api import pack


def write(path: Path, table: pa.Table, kind: str, batch: int = 7, **options: Any) -> ArrowSource:
    options = {"options": pa.ipc.IpcWriteOptions(**options)}
    if kind == "feather":
        pa.feather.write_feather(table, path, chunksize=batch, compression="lz4")
    else:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(path, table.schema, **options) as writer:
            writer.write_table(table, max_chunksize=batch)
    return ArrowSource(path, path.name)


@pytest.fixture
def table() -> pa.Table:
    return pa.table(
        {
            "k": pa.array([f"key {i // 9}" for i in range(60)]).dictionary_encode(),
            "x": pa.array([None if i % 5 == 0 else i / 3 for i in range(60)]),
            "l": pa.array([[float(i)] * (i % 3) for i in range(60)]),
        }
    )


@pytest.mark.parametrize("kind", ["file", "stream", "feather"])
def test_all_rows_arrive(tmp_path: Path, table: pa.Table, kind: str) -> None:
    source = write(tmp_path / "a.arrow", table, kind)
    assert table_of(source, chunk_bytes=50).to_pylist() == table.to_pylist()
    assert_projects(source)


@pytest.mark.parametrize("kind", ["file", "stream", "feather"])
@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_reading_continues_from_every_chunk(tmp_path: Path, table: pa.Table, kind: str, batch: int) -> None:
    source = write(tmp_path / "a.arrow", table.select(["x", "l"]), kind, batch)
    assert_resumes(source, chunk_bytes=200, least=4)
    assert_threads_agree(source, chunk_bytes=200)


@pytest.mark.parametrize(
    "content", [b"A", b"ARROW1", b"ARROW1\0\0", b"text, not Arrow", b"\xff\xff\xff\xff" + bytes(50), b"FEA1" + bytes(100) + b"FEA1"]
)
def test_what_is_not_arrow_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.arrow").write_bytes(content)
    with pytest.raises(SourceInvalidError, match=r"a\.arrow"):
        pack(tmp_path / "a.arrow", tmp_path / "out")


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_file_that_was_cut_is_named(tmp_path: Path, kind: str) -> None:
    write(tmp_path / "a.arrow", pa.table({"x": np.arange(500.0)}), kind, 100)
    whole = (tmp_path / "a.arrow").read_bytes()
    for length in range(8, len(whole) - 8, 137):
        (tmp_path / "a.arrow").write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"a\.arrow"):
            pack(tmp_path / "a.arrow", tmp_path / "out")


def test_texts_that_point_outside_are_found(tmp_path: Path) -> None:
    """The offsets of a text column are data: believed, they would read memory that is not theirs."""
    words = pa.array(["alpha", "beta", "gamma"])
    offsets = np.frombuffer(words.buffers()[1], dtype="<i4")[:4].tobytes()
    write(tmp_path / "a.arrow", pa.table({"w": words}), "file")
    data = (tmp_path / "a.arrow").read_bytes()
    assert data.count(offsets) == 1
    broken = data.replace(offsets, np.array([0, 5, 2**30, 14], dtype="<i4").tobytes())
    (tmp_path / "a.arrow").write_bytes(broken)
    with pytest.raises(SourceInvalidError, match=r"a.arrow is damaged or not Arrow IPC"):
        pack(tmp_path / "a.arrow", tmp_path / "out")

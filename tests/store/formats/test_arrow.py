"""Arrow IPC files and streams: read alike, in parts, and never believed before they are checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

from stoker import pack
from stoker.errors import SourceError, SourceInvalidError
from stoker.store.formats.arrow import ArrowSource


def write(path: Path, table: pa.Table, kind: str, batch: int = 7, **options: Any) -> ArrowSource:
    options = {"options": pa.ipc.IpcWriteOptions(**options)}
    if kind == "feather":
        pa.feather.write_feather(table, path, chunksize=batch, compression="lz4")
    else:
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(path, table.schema, **options) as writer:
            writer.write_table(table, max_chunksize=batch)
    return ArrowSource(path, path.name)


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

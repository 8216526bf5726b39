"""Sources that change while they are packed: never a store of half the old and half the new. `tests/faults` changes them at any block."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

from stoker import pack
from stoker.errors import SourceChangedError, SourceError
from stoker.store import open_store


@pytest.mark.parametrize("phase", ["reading", "merging"])
@pytest.mark.parametrize(
    "change", [lambda path: os.utime(path, ns=(1, 1)), lambda path: path.unlink(missing_ok=True)], ids=["touch", "remove"]
)
def test_a_change_is_noticed_and_the_store_that_was_there_stays(tmp_path: Path, change: Callable[[Path], None], phase: str) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": [i % 7 for i in range(500)], "x": [1.5] * 500}), path, row_group_size=50)
    old = pack(path, tmp_path / "out", series="k")

    def meddle(now: str, share: float, rows: int) -> None:
        if now == phase:
            change(path)

    with shrunk(chunk_bytes=1000, run_bytes=2000), pytest.raises(SourceChangedError, match=r"a\.parquet") as caught:
        pack(path, tmp_path / "out", series="k", replace=True, progress=meddle)
    assert caught.value.path == str(path)
    assert open_store(tmp_path / "out").digest == old.digest


def test_types_that_differ_between_two_looks(tmp_path: Path) -> None:
    """Text that settles as whole numbers and then holds a word."""
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "1\n" * 100 + "2.5\n" * 100)

    def meddle(phase: str, share: float, rows: int) -> None:
        if phase == "settling types":
            path.write_text("x\n" + "1\n" * 100 + "abc\n" * 100)

    with shrunk(line_bytes=150), pytest.raises(SourceError, match=r"a\.csv") as caught:
        pack(path, tmp_path / "out", progress=meddle)
    assert caught.value.path == str(path)
    assert not (tmp_path / "out").exists()

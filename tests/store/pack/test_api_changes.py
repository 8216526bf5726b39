"""Sources that change while they are packed: never a store of half the old and half the new."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.shrink import shrunk

from stoker.errors import SourceChangedError, SourceError
from stoker.store.opening import open_store
from stoker.store.pack.api import pack


def write(path: Path, value: float) -> None:
    table = pa.table({"k": [i % 7 for i in range(500)], "x": [value] * 500})
    if path.suffix == ".csv":
        path.write_text("k,x\n" + "".join(f"{row['k']},{row['x']}\n" for row in table.to_pylist()))
    else:
        pq.write_table(table, path, row_group_size=50)


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n")


def replace(path: Path) -> None:
    write(path.with_name("new" + path.suffix), 2.5)
    path.with_name("new" + path.suffix).replace(path)


def touch(path: Path) -> None:
    os.utime(path, ns=(1, 1))


CHANGES: dict[str, Callable[[Path], None]] = {"append": append, "replace": replace, "touch": touch, "remove": os.unlink}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("phase", ["reading", "merging"])
def test_a_change_is_noticed_and_nothing_is_left(tmp_path: Path, change: str, suffix: str, phase: str) -> None:
    path = tmp_path / f"a{suffix}"
    write(path, 1.5)
    done = False

    def meddle(now: str, share: float, rows: int) -> None:
        nonlocal done
        if now == phase and not done:
            CHANGES[change](path)
            done = True

    with shrunk(chunk_bytes=1000, run_bytes=2000, line_bytes=1000), pytest.raises(SourceError, match=rf"a\{suffix}") as caught:
        pack(path, tmp_path / "out", series="k", progress=meddle)
    assert done
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_store_that_was_there_stays(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 1.5)
    old = pack(tmp_path / "a.parquet", tmp_path / "out", series="k")
    with pytest.raises(SourceChangedError):
        pack(tmp_path / "a.parquet", tmp_path / "out", replace=True, progress=lambda *_: touch(tmp_path / "a.parquet"))
    assert open_store(tmp_path / "out").digest == old.digest


def test_types_that_differ_between_two_looks(tmp_path: Path) -> None:
    """Text that settles as whole numbers and then holds a word."""
    path = tmp_path / "a.csv"
    path.write_text("x\n" + "1\n" * 100 + "2.5\n" * 100)

    def meddle(phase: str, share: float, rows: int) -> None:
        if phase == "settling types":
            path.write_text("x\n" + "1\n" * 100 + "abc\n" * 100)

    with shrunk(line_bytes=150), pytest.raises(SourceError, match=r"a\.csv"):
        pack(path, tmp_path / "out", progress=meddle)
    assert not (tmp_path / "out").exists()

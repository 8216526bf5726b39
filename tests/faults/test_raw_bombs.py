"""Bombs: small files that unfold to more than the memory there is are packed within their memory, or refused in a sentence."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.faults.conftest import READERS
from tests.harness import Zygote

import stoker
from stoker import pack
from stoker.errors import SourceTooLargeError, StokerError
from stoker.store import open_store

LIMIT_BYTES = 1 << 30
BOMB_BYTES = 1_600_000_000


@pytest.fixture(scope="module")
def bomb_zygote() -> Iterator[Zygote]:
    """Children whose address space is what they use: no arenas and pools that are only reserved."""
    plain = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    imports = ["pandas", "pyarrow.pandas_compat", *READERS, "tests.faults.test_raw_bombs"]
    with mock.patch.dict(os.environ, plain), Zygote(imports=imports) as zygote:
        yield zygote


@pytest.fixture(scope="module")
def parquet_bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Less than a megabyte that unfolds to 1.6 GB."""
    path, rows, groups = tmp_path_factory.mktemp("bomb") / "bomb.parquet", BOMB_BYTES // 8, 10
    part = pa.table({"x": pa.array(np.full(rows // groups, 7.0))})
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(groups):
            writer.write_table(part, row_group_size=rows // groups)
    assert path.stat().st_size < 1 << 20
    return path


def pack_bomb(source: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    """Pack, without opening: mapping what was packed takes address space too, and that is what is scarce here."""
    error = None
    try:
        with mock.patch("stoker.store.pack.packer.map_store"):
            pack(source, store, resources=stoker.Resources(memory="256MB"), **options)
    except StokerError as caught:
        error = caught
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"error": None if error is None else type(error).__name__, "message": str(error), "peak_bytes": peak_bytes}


def explode(zygote: Zygote, source: Path, store: Path, *, limit_bytes: int = LIMIT_BYTES, **options: Any) -> dict[str, Any]:
    """Pack a bomb in a child with little memory, which must live."""
    assert source.stat().st_blocks * 512 < 32 << 20, "a bomb is small"
    outcome = zygote.run(pack_bomb, source=source, store=store, options=options, memory_bytes=limit_bytes, seconds=280)
    value: dict[str, Any] = outcome.check()
    assert (value["error"] is None) == store.exists()
    print(value)
    return value


@pytest.mark.promise("P6")
@pytest.mark.slow
def test_a_parquet_bomb_is_packed_within_its_memory(bomb_zygote: Zygote, parquet_bomb: Path, tmp_path: Path) -> None:
    found = explode(bomb_zygote, parquet_bomb, tmp_path / "store")
    assert found["error"] is None
    assert found["peak_bytes"] < 400 << 20
    values = open_store(tmp_path / "store").column("x")
    assert len(values) == BOMB_BYTES // 8
    assert (values[::1000] == 7).all()


def test_a_parquet_row_that_is_larger_than_memory_is_refused(bomb_zygote: Zygote, tmp_path: Path) -> None:
    path, rows = tmp_path / "bomb.parquet", 40_000_000
    lists = pa.LargeListArray.from_arrays(pa.array([0, rows]), pa.array(np.zeros(rows)))
    pq.write_table(pa.table({"x": lists}), path)
    found = explode(bomb_zygote, path, tmp_path / "store", limit_bytes=300 << 20)
    assert found["error"] == "SourceTooLargeError"
    assert "bomb.parquet" in found["message"]


@pytest.mark.promise("P6")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.ts", "a.arff"])
def test_a_line_of_a_gigabyte_that_another_library_reads_is_refused(bomb_zygote: Zygote, tmp_path: Path, name: str) -> None:
    """The other formats refuse it within the memory given: `test_raw_widths.py`."""
    (tmp_path / name).write_text("@relation p\n@attribute a numeric\n@attribute class {x}\n@data\n1,x\n")
    os.truncate(tmp_path / name, 1 << 30)
    assert explode(bomb_zygote, tmp_path / name, tmp_path / "store")["error"] in ("SourceTooLargeError", "SourceInvalidError")


def test_memory_that_runs_out_anywhere_is_an_error_of_ours(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.zeros(10)}), tmp_path / "small.parquet")
    for place in ("blocks.Shaper.block", "sorted_runs.SortedRun.add", "sorted_runs.SortedRun._write", "plan._plan"):
        with (
            mock.patch(f"stoker.store.pack.{place}", side_effect=MemoryError),
            pytest.raises(SourceTooLargeError, match=r"Pass a smaller Resources.memory="),
        ):
            pack(tmp_path / "small.parquet", tmp_path / "store")
        assert not (tmp_path / "store").exists()


# ---- negative controls: these bombs do explode ----


def read_whole(source: str) -> int:
    return int(pq.read_table(source).nbytes)


@pytest.mark.promise("P6", control=True)
@pytest.mark.slow
def test_negative_control_reading_the_parquet_bomb_whole_takes_more_than_the_memory(
    bomb_zygote: Zygote, parquet_bomb: Path
) -> None:
    outcome = bomb_zygote.run(read_whole, source=parquet_bomb, memory_bytes=LIMIT_BYTES)
    assert outcome.error.startswith("ArrowMemoryError")


def test_a_compressed_arrow_batch_that_is_larger_than_memory_is_refused(bomb_zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "bomb.arrow"
    table = pa.table({"x": np.zeros(LIMIT_BYTES, dtype="i1")})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    found = explode(bomb_zygote, path, tmp_path / "store")
    assert found["error"] == "SourceTooLargeError"
    assert "bomb.arrow" in found["message"]

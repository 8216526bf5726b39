"""Bombs: small files that unfold to far more than the memory there is. Each is packed within its memory or refused in a sentence."""

from __future__ import annotations

import gzip
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

from stoker.errors import StokerError
from stoker.store.pack import pack
from stoker.testing import Zygote

LIMIT_BYTES = 1 << 30
BOMB_BYTES = 1_600_000_000


@pytest.fixture(scope="module")
def bomb_zygote() -> Iterator[Zygote]:
    """Children whose address space is what they use: no arenas and pools that are only reserved."""
    plain = {"MALLOC_ARENA_MAX": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    imports = ["pandas", "pyarrow.pandas_compat", *READERS, "tests.faults.test_raw_bombs"]
    with mock.patch.dict(os.environ, plain), Zygote(imports=imports) as zygote:
        yield zygote


def pack_bomb(source: str, store: str, options: dict[str, Any]) -> dict[str, Any]:
    """Pack; what came out, in words that JSON knows."""
    try:
        packed = pack(source, store, memory="256MB", **options)
    except StokerError as error:
        return {"error": type(error).__name__, "message": str(error)}
    sums = {name: float(packed.column(name)[::1000].sum()) for name, column in packed.schema.items() if column.kind == "number"}
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    return {"error": None, "steps": packed.num_steps, "sums": sums, "peak_bytes": peak_bytes}


def explode(zygote: Zygote, source: Path, **options: Any) -> dict[str, Any]:
    """Pack a bomb in a child with little memory, which must live."""
    assert source.stat().st_blocks * 512 < 32 << 20, "a bomb is small"
    store = source.with_name("store")
    outcome = zygote.run(pack_bomb, source=source, store=store, options=options, memory_bytes=LIMIT_BYTES, seconds=280)
    assert (outcome.exit, outcome.signal) == (0, None), outcome.trace or outcome
    value: dict[str, Any] = outcome.value
    assert value["error"] is None or not store.exists()
    print(value)
    return value


def test_a_parquet_bomb_is_packed_within_its_memory(bomb_zygote: Zygote, tmp_path: Path) -> None:
    path, rows, groups = tmp_path / "bomb.parquet", BOMB_BYTES // 8, 10
    part = pa.table({"x": pa.array(np.full(rows // groups, 7.0))})
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(groups):
            writer.write_table(part, row_group_size=rows // groups)
    assert path.stat().st_size < 1 << 20
    found = explode(bomb_zygote, path)
    assert found["error"] is None
    assert found["steps"] == rows
    assert found["sums"] == {"x": 7.0 * rows / 1000}
    assert found["peak_bytes"] < 400 << 20


def test_a_parquet_bomb_that_cannot_fit_on_the_disk_names_both_sizes(tmp_path: Path) -> None:
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"x": np.zeros(1_000_000)}), path)
    with mock.patch("stoker.files.free_bytes", return_value=1_234_567), pytest.raises(StokerError, match=r"8,000,000.*1,234,567"):
        pack(path, tmp_path / "store")


def list_bomb(path: Path, rows: int) -> None:
    """A list of so many values, in pages of some bytes: levels and values are runs."""
    values = pa.array(np.zeros(rows, dtype="f4"))
    lists = pa.LargeListArray.from_arrays(pa.array([0, rows]), values)
    pq.write_table(pa.table({"x": lists}), path)


def test_a_parquet_row_that_is_larger_than_memory_is_refused(bomb_zygote: Zygote, tmp_path: Path) -> None:
    list_bomb(tmp_path / "bomb.parquet", LIMIT_BYTES // 4)
    found = explode(bomb_zygote, tmp_path / "bomb.parquet")
    assert found["error"] == "SourceTooLarge"
    assert "bomb.parquet" in found["message"]


def test_a_compressed_arrow_batch_that_is_larger_than_memory_is_refused(bomb_zygote: Zygote, tmp_path: Path) -> None:
    path = tmp_path / "bomb.arrow"
    table = pa.table({"x": np.zeros(LIMIT_BYTES, dtype="i1")})
    with pa.ipc.new_file(path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    found = explode(bomb_zygote, path)
    assert found["error"] == "SourceTooLarge"
    assert "bomb.arrow" in found["message"]


def sparse(path: Path, start: bytes, num_bytes: int) -> None:
    """A file that is long but holds nothing: what is not written reads as zeros."""
    path.write_bytes(start)
    os.truncate(path, num_bytes)


@pytest.mark.parametrize("start", [b"", b"a,b\n1,2\n", b'a,b\n1,"'], ids=["first line", "later line", "open quote"])
@pytest.mark.parametrize("name", ["bomb.csv", "bomb.jsonl", "bomb.json", "bomb.ts", "bomb.arff", "bomb.tsv"])
def test_a_line_of_a_gigabyte_is_refused(bomb_zygote: Zygote, tmp_path: Path, name: str, start: bytes) -> None:
    sparse(tmp_path / name, start, 1 << 30)
    assert explode(bomb_zygote, tmp_path / name)["error"] in ("SourceTooLarge", "SourceInvalid")


def gzip_bomb(path: Path, start: bytes, repeated: bytes, num_bytes: int) -> None:
    part = repeated * ((1 << 20) // len(repeated))
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(start)
        for _ in range(num_bytes // len(part)):
            file.write(part)


def test_a_compressed_line_of_a_gigabyte_is_refused(bomb_zygote: Zygote, tmp_path: Path) -> None:
    gzip_bomb(tmp_path / "bomb.csv.gz", b"a,b\n1,2\n", b"7", 1 << 30)
    found = explode(bomb_zygote, tmp_path / "bomb.csv.gz")
    assert found["error"] == "SourceTooLarge"
    assert "a line of more than" in found["message"]


@pytest.mark.slow
def test_a_compressed_table_is_packed_within_its_memory(bomb_zygote: Zygote, tmp_path: Path) -> None:
    row = b"1234567,0.5,7654321\n"
    gzip_bomb(tmp_path / "bomb.csv.gz", b"a,b,c\n", row, BOMB_BYTES)
    found = explode(bomb_zygote, tmp_path / "bomb.csv.gz")
    assert found["error"] is None
    rows = BOMB_BYTES // ((1 << 20) // len(row) * len(row)) * ((1 << 20) // len(row))
    assert found["steps"] == rows
    assert found["peak_bytes"] < 400 << 20


def test_a_million_columns_are_refused_with_their_number(bomb_zygote: Zygote, tmp_path: Path) -> None:
    names = ",".join(f"c{i}" for i in range(1_000_000))
    (tmp_path / "bomb.csv").write_text(names + "\n" + ",".join(["1"] * 1_000_000) + "\n")
    found = explode(bomb_zygote, tmp_path / "bomb.csv")
    assert found["error"] == "SourceTooLarge"
    assert "1,000,000 columns" in found["message"]
    assert "at most" in found["message"]


def test_a_field_of_many_megabytes_is_no_fault(bomb_zygote: Zygote, tmp_path: Path) -> None:
    gzip_bomb(tmp_path / "bomb.csv.gz", b"a,b\n1,2\n3,", b"7", 40 << 20)
    assert explode(bomb_zygote, tmp_path / "bomb.csv.gz")["error"] in (None, "BadValue", "SourceInvalid", "SourceTooLarge")


def test_a_million_categories_and_more_are_refused_with_their_limit(bomb_zygote: Zygote, tmp_path: Path) -> None:
    texts = pa.array([f"text {i}" for i in range(1_200_000)])
    pq.write_table(pa.table({"x": np.zeros(len(texts)), "text": texts}), tmp_path / "bomb.parquet")
    found = explode(bomb_zygote, tmp_path / "bomb.parquet")
    assert found["error"] == "SourceTooLarge"
    assert "distinct texts" in found["message"]


# ---- negative controls: these bombs do explode ----


def read_whole(source: str) -> int:
    return int(pq.read_table(source).nbytes)


def test_negative_control_reading_the_parquet_bomb_whole_takes_more_than_the_memory(bomb_zygote: Zygote, tmp_path: Path) -> None:
    path, rows = tmp_path / "bomb.parquet", BOMB_BYTES // 8
    part = pa.table({"x": pa.array(np.full(rows // 10, 7.0))})
    with pq.ParquetWriter(path, part.schema) as writer:
        for _ in range(10):
            writer.write_table(part)
    outcome = bomb_zygote.run(read_whole, source=path, memory_bytes=LIMIT_BYTES)
    assert outcome.exit != 0


def read_line(source: str) -> int:
    with gzip.open(source, "rb") as file:
        return max(len(line) for line in file)


def test_negative_control_reading_the_long_line_takes_more_than_the_memory(bomb_zygote: Zygote, tmp_path: Path) -> None:
    gzip_bomb(tmp_path / "bomb.csv.gz", b"a,b\n1,2\n", b"7", 1 << 30)
    outcome = bomb_zygote.run(read_line, source=tmp_path / "bomb.csv.gz", memory_bytes=LIMIT_BYTES)
    assert outcome.error is not None
    assert outcome.error.startswith("MemoryError")

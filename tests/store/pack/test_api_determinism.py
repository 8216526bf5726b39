"""Determinism: the same input gives the same bytes, whatever the threads, the memory, the folder and the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.store.pack.cluster import contents
from tests.store.shrink import shrunk

import stoker
from stoker import pack
from stoker.errors import OptionError
from stoker.store import open_store

ROWS = 150
"""Of each file."""


def write_inputs(folder: Path, *, backwards: bool = False) -> None:
    """Three files of text and three of Parquet, with keys far apart; the order of creation is not that of the names."""
    rng = np.random.default_rng(42)
    (folder / "csv").mkdir(parents=True)
    (folder / "parquet").mkdir()
    parts = []
    for i in range(3):
        keys = rng.integers(0, 12, ROWS)
        parts.append(
            {
                "symbol": [f"S{key}" for key in keys.tolist()],
                "ts": (np.datetime64("2021-03-28T00:30") + (np.arange(ROWS) + ROWS * i) * np.timedelta64(1200, "s")).astype(
                    "datetime64[s]"
                ),
                "close": rng.normal(size=ROWS),
                "n": rng.integers(0, 2**40, ROWS),
                "mood": [f"mood {m}" for m in rng.integers(0, 30, ROWS).tolist()],
            }
        )
    for i in reversed(range(3)) if backwards else range(3):
        table = pa.table(parts[i])
        pq.write_table(table, folder / "parquet" / f"{i}.parquet", row_group_size=47)
        lines = [",".join(str(v) for v in row.values()) for row in table.to_pylist()]
        (folder / "csv" / f"{i}.csv").write_text("symbol,ts,close,n,mood\n" + "\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


SHAPES: dict[str, dict[str, Any]] = {
    "series": {"series": "symbol", "time": "ts"},
    "files": {"missing": "ffill"},
    "sorted": {"series": "mood", "time": "n", "sort": True},
    "wide": {"wide": True, "time": "ts"},
}


@pytest.mark.promise("P3")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", [pytest.param("csv", marks=pytest.mark.slow), "parquet"])
def test_threads_and_limits_do_not_matter(inputs: Path, tmp_path: Path, shape: str, form: str) -> None:
    def packed(**options: Any) -> dict[str, bytes]:
        return contents(pack(inputs / form, tmp_path / "out", replace=True, resources=stoker.Resources(**options), **SHAPES[shape]))

    expected = packed()
    for options in ({"threads": 1}, {"threads": 3}, {"memory": "256MB", "threads": 8}):
        assert packed(**options) == expected
    for limits in (
        {"run_bytes": 1500, "chunk_bytes": 1100, "line_bytes": 700},
        {"run_bytes": 3500, "fan_in": 3, "journal_bytes": 2000},
    ):
        with shrunk(**limits):
            assert packed(threads=3) == expected


@pytest.mark.promise("P3")
def test_the_folder_and_the_order_of_creation_do_not_matter(inputs: Path, tmp_path: Path) -> None:
    write_inputs(tmp_path / "else where", backwards=True)
    one = pack(inputs / "parquet", tmp_path / "one", **SHAPES["series"])
    two = pack(str(tmp_path / "else where/parquet/*.parquet"), tmp_path / "two", **SHAPES["series"])
    assert contents(one) == contents(two)


@pytest.mark.promise("P3", control=True)
def test_any_changed_value_changes_the_digest(tmp_path: Path) -> None:
    digests = {
        pack({"k": [1, 2], "x": values}, tmp_path / str(i), series="k").digest
        for i, values in enumerate(([0.0, 1.0], [-0.0, 1.0], [0.0, 1.0000000000000002], [1.0, 0.0], [0.0, np.nan]))
    }
    assert len(digests) == 5


SCRIPT = """
import sys
from stoker import pack
store = pack(sys.argv[1], sys.argv[2], series="symbol", time="ts", missing="ffill")
other = pack(sys.argv[1], sys.argv[2] + "2", series="mood", time="n", sort=True)
print(store.digest, other.digest)
"""
ENVIRONMENTS: list[tuple[dict[str, str], list[str]]] = [
    ({"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C"}, []),
    ({"PYTHONHASHSEED": "2", "TZ": "America/New_York", "LC_ALL": "C.UTF-8"}, []),
    ({"PYTHONHASHSEED": "3", "TZ": "Europe/Berlin", "LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}, ["-O"]),
    ({"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}, ["-X", "dev"]),
]


@pytest.mark.promise("P3")
@pytest.mark.parametrize("environments", [ENVIRONMENTS[:2], pytest.param(ENVIRONMENTS[1:], marks=pytest.mark.slow)])
def test_the_environment_does_not_matter(
    inputs: Path, tmp_path: Path, environments: list[tuple[dict[str, str], list[str]]]
) -> None:
    """Seeds of hashes, time zones with a change of clocks in the data, locales, and an interpreter without assertions."""
    digests = set()
    for i, (extra, flags) in enumerate(environments):
        (tmp_path / str(i)).mkdir()
        done = subprocess.run(
            [sys.executable, *flags, "-c", SCRIPT, str(inputs / "csv"), str(tmp_path / str(i) / "out")],
            env={**os.environ, **extra},
            cwd=tmp_path / str(i),
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        digests.add(done.stdout)
    assert len(digests) == 1


# Where a store may go


@pytest.mark.promise("P1")
@pytest.mark.parametrize("shape", ["file", "folder", "hidden", "manifest", "work"])
def test_what_is_not_a_store_is_never_replaced(tmp_path: Path, shape: str) -> None:
    out = tmp_path / "out"
    if shape == "file":
        out.write_text("mine")
        message = "out is a file, but a store is a folder"
    else:
        out.mkdir()
        name = {"folder": "thesis.txt", "hidden": ".secret", "manifest": "manifest.json", "work": "work"}[shape]
        (out / name).write_text("mine")
        message = rf"is not a store and not empty \(it holds '{name}'\). Choose another folder, so that nothing is lost"
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(OptionError, match=message):
        pack({"x": [1]}, out)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_source_is_never_its_own_store(tmp_path: Path) -> None:
    first = pack({"k": [1, 2], "x": [1.0, 2.0]}, tmp_path / "store", series="k")
    before = contents(first)
    for given in (tmp_path / "store", [str(tmp_path / "store")], first):
        with pytest.raises(OptionError, match=r"store is both the source and the store. Choose another name"):
            pack(given, tmp_path / "store", series="k")
    with pytest.raises(OptionError, match="store is both the source and the store"):
        pack(str(tmp_path / "*"), tmp_path / "store", series="k")
    assert contents(open_store(tmp_path / "store")) == before
    (tmp_path / "a.csv").write_text("x\n1\n")
    with pytest.raises(OptionError, match=r"a.csv is a file"):
        pack(tmp_path / "a.csv", tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_text() == "x\n1\n"

"""The attacks in `tests/faults/attacks`: each is a script, each is defeated, and each would work without its guard."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ATTACKS = Path(__file__).parent / "attacks"
SCRIPTS = sorted(path.stem for path in ATTACKS.glob("*.py") if path.stem != "attempt")


def attack(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds the attacks."""
    path = os.pathsep.join([str(ATTACKS), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.promise("P6")
@pytest.mark.parametrize("name", SCRIPTS)
def test_every_attempt_of_an_attack_is_refused_with_a_sentence(tmp_path: Path, name: str) -> None:
    done = attack(f"import runpy; runpy.run_path({str(ATTACKS / name) + '.py'!r}, run_name='__main__')", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines
    assert all(re.match(r"(refused    .+: \w+: .{20,})|(survived   .{20,})", line) for line in lines)


# ---- negative controls: without its guard each attack succeeds ----

WITHOUT_GUARD = {
    # Any name will do, links are followed, and sizes and headers are not compared.
    "shard_paths": """
import numpy, types
from stoker.store import manifest, store
manifest._Rules.shard = lambda *_, **__: None
store.map_shard = lambda folder, shard, what: numpy.frombuffer((folder / shard.file).read_bytes()[:128], dtype="u1")
store.map_store = lambda folder, manifest, **_: types.SimpleNamespace(
    column=lambda _: store.map_shard(folder, manifest.columns[0].values, "")
)
shard_paths.open_store = lambda path: store.map_store(path, store.read_manifest(path))
""",
    # Types are right, but no rule is checked.
    "manifest_overflow": """
import numpy
from stoker.store import manifest, store, versions
manifest._check = lambda *_: None
store.map_shard = lambda folder, shard, what: numpy.zeros(9 if what.startswith("column") else 5, dtype="i8")
versions.map_store = lambda folder, manifest, **_: []
""",
    # What NumPy does if it is asked to.
    "pickle_in_npy": """
import numpy
from stoker.store.formats import numpy as npy
npy.NpySource.__init__ = lambda self, path, name, **_: numpy.load(path, allow_pickle=True)
""",
    # The whole table at once.
    "parquet_bomb": """
import pyarrow.parquet as pq
from stoker.store.formats import parquet
from stoker.store.formats.base import Chunk, RowLocation
def read(self, schema, *, start, chunk_bytes):
    table = pq.read_table(self.path)
    yield lambda: Chunk(table, RowLocation(), RowLocation(table.num_rows, table.num_rows))
parquet.ParquetSource.read = read
""",
}


@pytest.mark.promise("P6", control=True)
@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_negative_control_without_its_guard_an_attack_succeeds(tmp_path: Path, name: str) -> None:
    done = attack(f"import attempt, {name}\n{WITHOUT_GUARD[name]}\nprint(attempt.run({name}.attempts))", tmp_path)
    assert "SUCCEEDED" in done.stdout or "the payload ran" in done.stderr or done.returncode < 0, done.stdout + done.stderr

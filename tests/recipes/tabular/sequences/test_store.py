"""Sequences as a store: packed tensors are one in memory, and tables on disk become one in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.recipes.tabular import sequences_twin as twin

import stoker
from stoker.errors import BadValueError, OptionError, SourceNotFoundError, StoreExistsError
from stoker_recipes.tabular import pack_sequences, pad_sequences

KEYS = [7, 3, 7, 7, 9, 3, 7, 1, 9]
VALUES = {"x": np.array([1.5, 2, np.nan, 4, -0.0, 6, 7, 8, np.inf]), "n": np.arange(10, 19, dtype=np.int16)}
TABLE: dict[str, Any] = {"user": np.array(KEYS), **VALUES}


def series_of(store: stoker.Store, name: str) -> list[list[Any]]:
    return [one[name].tolist() for one in store]


def test_packed_tensors_are_a_store() -> None:
    packed = pad_sequences(TABLE, key="user", layout="packed", contexts=[3, 5, 7])
    store = packed.store()
    assert store.lengths.tolist() == [2, 0, 4]
    assert series_of(store, "n") == [[11, 15], [], [10, 12, 13, 16]]
    assert store.column("n").__array_interface__["data"][0] == packed["n"].numpy().__array_interface__["data"][0]
    assert store.schema["x"].nonfinite.first == [2, 1]


def test_a_file_becomes_the_same_store_as_the_table_in_memory(tmp_path: Path) -> None:
    pq.write_table(pa.table(TABLE), tmp_path / "events.parquet", row_group_size=2)
    store = pack_sequences(tmp_path / "events.parquet", tmp_path / "store", key="user")
    packed = pad_sequences(TABLE, key="user", layout="packed", contexts=sorted(set(KEYS)))
    assert store.column("user").tolist() == packed.contexts.tolist()
    assert store.offsets.tolist() == packed.cu_seqlens.tolist()
    for name in VALUES:
        assert store.column(name).tobytes() == packed[name].numpy().tobytes()


@pytest.mark.parametrize("names", [False, True])
def test_a_store_of_given_contexts(tmp_path: Path, names: bool) -> None:
    keys = [f"u{key}" for key in KEYS] if names else KEYS
    asked: list[Any] = ["u9", "u4", "u3", "u0"] if names else [9, 4, 3, 0]
    table = {**TABLE, "user": keys, "kind": ["a", None, "b", "b", "a", "c", "a", "a", None]}
    store = pack_sequences(table, tmp_path / "store", key="user", contexts=asked)
    expected, bounds = twin.packed(keys, VALUES, contexts=sorted(asked))
    assert (store.key, list(store.texts("user")) if names else store.column("user").tolist()) == ("user", sorted(asked))
    assert store.offsets.tolist() == bounds
    for name, values in expected.items():
        assert store.column(name).tobytes() == values.tobytes()
    assert [store.texts("kind")[code] if code >= 0 else None for code in store.column("kind")] == [None, "c", "a", None]
    assert store.manifest is not None
    assert store.manifest.notes == ["5 rows have a user that is not among the contexts, and were left out"]
    assert (store.schema["x"].nonfinite.inf, store.schema["x"].nonfinite.first) == (1, [3, 1])
    assert store.find(asked[2]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    stoker.verify(tmp_path / "store")


def test_contexts_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "users.csv").write_text("user,age\n9,30\n4,40\n")
    store = pack_sequences(TABLE, tmp_path / "store", key="user", contexts=tmp_path / "users.csv")
    assert (store.column("user").tolist(), store.lengths.tolist()) == ([4, 9], [0, 2])
    pq.write_table(pa.table({"name": ["9"]}), tmp_path / "other.parquet")
    with pytest.raises(OptionError, match="has no column 'user' with contexts; it has name"):
        pack_sequences(TABLE, tmp_path / "other", key="user", contexts=str(tmp_path / "other.parquet"))
    with pytest.raises(SourceNotFoundError):
        pack_sequences(TABLE, tmp_path / "other", key="user", contexts=str(tmp_path / "nowhere.csv"))


def test_a_pack_of_listed_contexts_does_not_load_numba(run_python: Callable[..., str]) -> None:
    code = """
import sys
import stoker_recipes.tabular
store = stoker_recipes.tabular.pack_sequences({"k": [1, 2, 1], "x": [1, 2, 3]}, "out", key="k", contexts=[1, 7])
print(len(store), sorted({"numba", "torch"} & set(sys.modules)))
"""
    assert run_python(code) == "2 []\n"


@pytest.mark.parametrize(
    ("contexts", "message"),
    [
        ([3, 9, 3], r"column 'contexts' holds 3 \(int\) in row 3, as in row 1. List each context once"),
        (["a"], r"column 'contexts' holds 'a' \(str\) in row 1, but the key 'user' is int64. List keys of the same type"),
        ([3, None], "contexts has no key in row 2"),
    ],
)
def test_an_invalid_context_is_named(tmp_path: Path, contexts: list[Any], message: str) -> None:
    with pytest.raises(BadValueError, match=message):
        pack_sequences(TABLE, tmp_path / "store", key="user", contexts=contexts)


def test_a_folder_in_the_way_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / ".store.all-keys"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    with pytest.raises(OptionError, match="Stoker did not make it"):
        pack_sequences(TABLE, tmp_path / "store", key="user", contexts=[3])
    assert (other / "thesis.txt").read_text() == "years of work"
    assert not (tmp_path / "store").exists()


def test_a_store_is_replaced_at_the_end_only(tmp_path: Path) -> None:
    first = pack_sequences(TABLE, tmp_path / "store", key="user")
    with pytest.raises(BadValueError):
        pack_sequences(TABLE, tmp_path / "store", key="user", contexts=[3, 3], replace=True)
    with pytest.raises(StoreExistsError):
        pack_sequences(TABLE, tmp_path / "store", key="user", contexts=[3])
    assert stoker.open(tmp_path / "store").digest == first.digest
    second = pack_sequences(TABLE, tmp_path / "store", key="user", contexts=[3], replace=True)
    assert (len(second), len(first)) == (1, 4)
    assert series_of(first, "n")[0] == [17]


@pytest.mark.parametrize("form", ["csv", "table"])
def test_what_contexts_know_is_stored_per_series(tmp_path: Path, form: str) -> None:
    """Labels and countries beside the keys: they were dropped without a word."""
    users = {"user": [7, 99, 3], "label": [1, 0, 1], "country": ["DE", "AT", "DE"], "item": [0, 0, 0]}
    (tmp_path / "users.csv").write_text("user,label,country,item\n7,1,DE,0\n99,0,AT,0\n3,1,DE,0\n")
    events = {"user": [3, 7, 7], "item": [1, 2, 3]}
    store = pack_sequences(events, tmp_path / "out", key="user", contexts=users if form == "table" else tmp_path / "users.csv")
    assert (store.column("user").tolist(), store.lengths.tolist()) == ([3, 7, 99], [1, 2, 0])
    assert store.column("label").tolist() == [1, 1, 0]
    assert [store.texts("country")[code] for code in store.column("country")] == ["DE", "DE", "AT"]
    assert store.manifest is not None
    assert store.manifest.notes[-1] == "column 'item' of the contexts has the name of a column of the rows, and was left out"
    assert store.schema["country"].level == "series"


# Bounded memory: events larger than the memory become the sequences of listed contexts within it


SCRIPT = """
import pathlib, re, sys
from stoker_recipes.tabular import pack_sequences
if sys.argv[4] == "with the compiler":
    import stoker_recipes.tabular.sequences.kernels
source, out, contexts = sys.argv[1:4]
print(pack_sequences(source, out, key="k", contexts=contexts, memory="256MB", threads=2, replace=True).num_steps)
status = pathlib.Path("/proc/self/status").read_text()  # getrusage would count the parent's memory before the exec too
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) * 1024)
"""
MEMORY = 256 << 20


def encode(folder: Path, first: str = "") -> tuple[int, int]:
    """Pack with 256 MB; returns the steps of the store, and the peak of the process."""
    words = [str(folder / name) for name in ("in", "out", "users.parquet")]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words, first], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    steps, peak = map(int, done.stdout.split())
    return steps, peak


@pytest.mark.promise("P4")
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_events_larger_than_the_memory_become_the_sequences_of_contexts_within_it(tmp_path: Path, kind: str) -> None:
    rng = np.random.default_rng(0)
    rows, num_keys = 4_000_000, 200_000
    names = pa.array([f"user-{i}" for i in range(num_keys + 1000)]) if kind == "texts" else pa.array(np.arange(num_keys + 1000))
    (tmp_path / "in").mkdir()
    num_steps = 0
    for i in range(3):
        keys = rng.integers(0, num_keys, rows)
        num_steps += int((keys >= num_keys // 2).sum())
        columns = {"k": names.take(pa.array(keys)), "x": rng.normal(size=rows), "y": rng.integers(0, 2**60, rows)}
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{i}.parquet", compression="none", use_dictionary=False)
    pq.write_table(pa.table({"k": names[num_keys // 2 :]}), tmp_path / "users.parquet")
    assert sum(path.stat().st_size for path in (tmp_path / "in").iterdir()) > MEMORY
    steps, peak = encode(tmp_path)
    assert steps == num_steps
    assert peak <= MEMORY
    if kind == "numbers":  # the control: what was done without takes more than there is
        assert encode(tmp_path, "with the compiler")[1] > MEMORY

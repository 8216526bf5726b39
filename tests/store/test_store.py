"""The store: read-only views without copies, and refusals that name what is not there."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.harness import COLUMNS, TinyStore, Zygote, tiny_store, write_shard
from tests.store.tampering import edit_manifest

from stoker.errors import ManifestError, StoreDamagedError, StoreNotFoundError
from stoker.store.manifest import HEADER_BYTES
from stoker.store.opening import open_store

STEP_COLUMNS = [name for name in COLUMNS if name not in ("label", "symbol")]


@pytest.fixture
def built(tmp_path: Path) -> TinyStore:
    return tiny_store(tmp_path / "store")


def pieces(built: TinyStore, name: str) -> list[Any]:
    """The slow twin: a list with the values of each series."""
    return np.split(built.values[name], np.cumsum(built.lengths)[:-1])


# ---- reading ----


@pytest.mark.parametrize("options", [{}, {"lengths": (4, 4, 4), "uniform": True}, {"lengths": (4, 4, 4)}, {"lengths": (0, 0)}])
def test_every_series_has_its_values(tmp_path: Path, options: dict[str, Any]) -> None:
    built = tiny_store(tmp_path / "store", **options)
    store = built.open()
    assert len(store) == len(built.lengths)
    assert store.num_steps == sum(built.lengths)
    assert store.lengths.tolist() == built.lengths
    assert store.offsets.tolist() == [0, *np.cumsum(built.lengths)]
    assert store.uniform_length == (4 if options.get("uniform") else None)
    for i, series in enumerate(store):
        assert (series.index, series.num_steps) == (i, built.lengths[i])
        for name in STEP_COLUMNS:
            assert series[name].dtype == built.values[name].dtype
            assert np.array_equal(series[name], pieces(built, name)[i])
        assert series["label"] == built.values["label"][i]
        assert series["symbol"] == built.texts["symbol"][i]


def test_indices_may_be_negative_and_slices(built: TinyStore) -> None:
    store = built.open()
    assert [store[i].index for i in (-1, -4, 2)] == [3, 0, 2]
    assert store[np.int64(2)].index == 2  # type: ignore[call-overload]
    assert [series.index for series in store[1:3]] == [1, 2]
    assert [series.index for series in store[::-2]] == [3, 1]
    assert store[9:] == []
    for index in (4, -5, 10**30):
        with pytest.raises(IndexError, match=f"has 4 series; there is no series {index:,}"):
            store[index]


def test_an_unknown_column_is_named_with_those_there_are(built: TinyStore) -> None:
    store = built.open()
    for read in (lambda: store[0]["closing"], lambda: store.column("closing"), lambda: store.texts("closing")):
        with pytest.raises(KeyError, match=rf"{built.path} has no column 'closing'; it has price, wide, .*symbol"):
            read()


def test_the_schema_says_kind_level_unit_and_width(built: TinyStore) -> None:
    schema = built.open().schema
    assert {name: column.label for name, column in schema.items()} == {
        "price": "float64",
        "wide": "float32[3]",
        "brief": "bfloat16",
        "flag": "bool",
        "when": "timestamp[us, UTC]",
        "seen": "timestamp[ns]",
        "span": "duration[ms]",
        "mood": "category",
        "label": "int64",
        "symbol": "text",
    }
    assert schema["seen"].missing == 1
    assert schema["mood"].missing == (built.values["mood"] == -1).sum()
    assert {name for name, column in schema.items() if column.level == "series"} == {"label", "symbol"}


# ---- finding by key ----


def test_a_series_is_found_by_its_key(tmp_path: Path) -> None:
    built = tiny_store(tmp_path / "store", lengths=[1] * 100)
    store = built.open()
    assert [store.find(key) for key in built.texts["symbol"]] == list(range(100))
    for key in ("", "A", "Z", "b000", "\U0001f600"):
        with pytest.raises(KeyError, match=f"has no series with symbol '{key}'"):
            store.find(key)


def test_a_series_is_found_by_a_number_as_key(built: TinyStore) -> None:
    keys = np.array([-5, 0, 3, 2**40])
    entry = msgspec.to_builtins(write_shard(built.path, keys))

    def use_numbers(tree: Any) -> None:
        tree["columns"][COLUMNS.index("label")]["values"] = entry
        tree["key"] = "label"

    edit_manifest(built, use_numbers)
    store = built.open()
    assert [store.find(int(key)) for key in keys] == [0, 1, 2, 3]
    with pytest.raises(KeyError, match="label 4"):
        store.find(4)


# ---- what is not there, or not what it should be ----


def test_a_path_without_a_store_is_reported_why(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"does not exist. Make a store with `stoker pack"):
        open_store(tmp_path / "nothing")
    with pytest.raises(StoreNotFoundError, match=r"is not a store: it has no manifest.json"):
        open_store(tmp_path)
    (tmp_path / "work").mkdir()
    with pytest.raises(StoreNotFoundError, match="holds a pack that was interrupted"):
        open_store(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreNotFoundError):
        open_store(tmp_path / "file")


def test_a_manifest_that_is_not_a_plain_file_is_refused(built: TinyStore) -> None:
    path = built.path / "manifest.json"
    path.rename(built.path / "elsewhere")
    before = len(list(Path("/proc/self/fd").iterdir()))
    path.symlink_to(built.path / "elsewhere")
    with pytest.raises(ManifestError, match="cannot be opened as a plain file"):
        built.open()
    path.unlink()
    path.mkdir()
    with pytest.raises(ManifestError, match="is not a plain file"):
        built.open()
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(ManifestError, match="is not a plain file"):
        built.open()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_each_missing_shard_is_named_with_what_it_held(built: TinyStore) -> None:
    for path in sorted(built.path.glob("*.npy")):
        path.rename(built.path / "elsewhere")
        with pytest.raises(
            StoreDamagedError, match=rf"{path.name} is missing: it holds (column|texts of|the text offsets|the offsets)"
        ):
            built.open()
        (built.path / "elsewhere").rename(path)
    built.open()


# ---- what happens to a store while it is open ----


def test_a_store_that_is_replaced_stays_readable_until_it_is_closed(tmp_path: Path) -> None:
    old = tiny_store(tmp_path / "store", columns=["price"], seed=1)
    store = old.open()
    new = tiny_store(tmp_path / "store", columns=["price"], seed=2)
    for path in {old.path / column.values.file for column in old.manifest.columns if column.values is not None}:
        path.unlink()
    assert np.array_equal(store.column("price"), old.values["price"])
    assert np.array_equal(open_store(tmp_path / "store").column("price"), new.values["price"])


def read_while_truncated(path: str, victim: str) -> str:
    store = open_store(path)
    os.truncate(victim, HEADER_BYTES)
    return str(store.column("price").sum())


def test_a_shard_truncated_in_place_kills_its_reader_and_is_named_by_the_next(tmp_path: Path, zygote: Zygote) -> None:
    built = tiny_store(tmp_path / "store", lengths=(5000,), columns=["price"])
    assert built.manifest.columns[0].values is not None
    victim = built.path / built.manifest.columns[0].values.file
    assert zygote.run(read_while_truncated, path=built.path, victim=victim).signal == signal.SIGBUS
    with pytest.raises(StoreDamagedError, match=f"{victim.name} has 128 bytes, but 40,128 are expected: it holds column 'price'"):
        built.open()

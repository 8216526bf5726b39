"""The store: read-only views without copies, refusals that name what is not there, and stores that lie."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from tests.harness import COLUMNS, TinyStore, Zygote, edit_manifest, tiny_store, write_shard

from stoker.errors import ManifestError, StoreDamagedError, StoreNotFoundError
from stoker.store import open_store, shards
from stoker.store.manifest import BLOCK_BYTES, HEADER_BYTES

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

    edit_manifest(built.path, use_numbers)
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
    with pytest.raises(StoreNotFoundError, match="is not a store"):  # a folder of the user's, without the mark of a pack
        open_store(tmp_path)
    (tmp_path / "work" / "mark").touch()
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
        with pytest.raises(StoreDamagedError, match=rf"{path.name} is missing: it holds (column|texts|the)"):
            built.open()
        (built.path / "elsewhere").rename(path)
    built.open()


# Stores that lie, with digests that fit: refused or harmless, never a dead process; and stores too large for 32 bits


# ---- stores that lie ----


def put_offsets(built: TinyStore, offsets: list[int]) -> None:
    entry = msgspec.to_builtins(write_shard(built.path, np.array(offsets, dtype="<i8")))
    edit_manifest(built.path, lambda tree: tree.update(offsets=entry))


@pytest.mark.promise("P7")
@pytest.mark.parametrize("offsets", [[0, 3, 3, 8, 10], [1, 3, 3, 8, 9], [0, 3, 3, 8, -1], [0, 0, 0, 0, 0]])
def test_offsets_that_do_not_run_over_all_steps_are_refused_at_open(built: TinyStore, offsets: list[int]) -> None:
    put_offsets(built, offsets)
    with pytest.raises(StoreDamagedError, match=r"the offsets of the series run from .* but 0 to 9 are expected"):
        built.open()


@pytest.mark.promise("P7")
@pytest.mark.parametrize("offsets", [[0, 8, 3, 8, 9], [0, 2**62, 3, 8, 9], [0, -5, 3, 8, 9], [0, 3, -(2**63), 2**63 - 1, 9]])
def test_offsets_that_fall_are_refused_when_they_are_used(built: TinyStore, offsets: list[int]) -> None:
    put_offsets(built, offsets)
    store = built.open()
    with pytest.raises(StoreDamagedError, match=r"the offsets of series \d are"):
        list(store)
    with pytest.raises(StoreDamagedError, match=r"column 'price' is not valid"):
        store.to_arrow()


@pytest.mark.promise("P7", control=True)
def test_negative_control_arrow_alone_would_believe_falling_offsets(built: TinyStore) -> None:
    wrong = pa.LargeListArray.from_arrays(pa.array([0, 2**40, 9], pa.int64()), pa.array(range(9)))
    wrong.validate()
    with pytest.raises(pa.ArrowInvalid):
        wrong.validate(full=True)


def put_texts(built: TinyStore, name: str, utf8: bytes, offsets: list[int]) -> None:
    texts = {
        "utf8": msgspec.to_builtins(write_shard(built.path, np.frombuffer(utf8, "|u1"))),
        "offsets": msgspec.to_builtins(write_shard(built.path, np.array(offsets, "<i8"))),
    }
    edit_manifest(built.path, lambda tree: tree["columns"][COLUMNS.index(name)].update(texts=texts))


@pytest.mark.promise("P7")
def test_text_offsets_that_fall_cannot_lead_out_of_the_texts(built: TinyStore, zygote: Zygote) -> None:
    put_texts(built, "symbol", b"abcd", [0, 2**40, -(2**40), 3, 4])
    store = built.open()
    assert all(len(text) <= 4 for text in store.texts("symbol"))
    with pytest.raises(StoreDamagedError, match="column 'symbol' is not valid"):
        store.to_arrow()


@pytest.mark.promise("P7")
def test_text_offsets_that_do_not_cover_the_texts_are_refused_at_open(built: TinyStore) -> None:
    put_texts(built, "symbol", b"abcd", [0, 1, 2, 3, 5])
    with pytest.raises(StoreDamagedError, match="text offsets of column 'symbol' run from 0 to 5, but 0 to 4 are expected"):
        built.open()


@pytest.mark.promise("P7")
def test_texts_that_are_not_utf8_do_no_harm(built: TinyStore) -> None:
    put_texts(built, "symbol", b"a\xff\xfeb", [0, 1, 2, 3, 4])
    store = built.open()
    assert store[1]["symbol"] == "\ufffd"
    with pytest.raises(StoreDamagedError, match="column 'symbol' is not valid"):
        store.to_arrow()


@pytest.mark.promise("P7")
def test_codes_without_a_text_are_refused_by_arrow_only_then(built: TinyStore) -> None:
    put_texts(built, "mood", b"ab", [0, 1, 2])
    with pytest.raises(StoreDamagedError, match="column 'mood' is not valid"):
        built.open().to_arrow()


@pytest.mark.promise("P7")
@pytest.mark.parametrize("dtype", ["|O", "|V0", "<U2", ">f8", "<c16"])
def test_a_store_with_another_dtype_is_refused_before_its_shards_are_opened(
    built: TinyStore, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def use_dtype(tree: Any) -> None:
        entry = tree["columns"][0]["values"]
        path = built.path / entry["file"]
        path.chmod(0o644)
        path.write_bytes(shards.header(dtype, [9]) + path.read_bytes()[HEADER_BYTES:])
        entry["dtype"] = dtype

    edit_manifest(built.path, use_dtype)
    monkeypatch.setattr(shards, "map_shard", lambda *_: pytest.fail("opened"))
    with pytest.raises(ManifestError, match="dtype"):
        built.open()


def map_as_objects(path: str) -> int:
    """What NumPy does with a dtype that no list forbids: it takes numbers of the file for pointers."""
    return len(repr(np.memmap(path, "O", offset=HEADER_BYTES).tolist()))


@pytest.mark.promise("P7", control=True)
def test_negative_control_numpy_maps_objects_and_dies(built: TinyStore, zygote: Zygote) -> None:
    outcome = zygote.run(map_as_objects, path=built.path / built.manifest.columns[0].values.file)
    assert outcome.signal == signal.SIGSEGV


# ---- offsets beyond 32 bits ----


@pytest.mark.promise("P7")
def test_series_beyond_2_to_the_31_and_32_have_their_values(tmp_path: Path) -> None:
    """A store of 5 GiB that takes up a few kilobytes: a sparse file, written by hand."""
    built = tiny_store(tmp_path / "store", columns=["flag"])
    num_steps = 5 << 30
    edges = [0, 2**31 - 5, 2**31 + 5, 2**32 - 5, 2**32 + 5, num_steps]
    name = "f" * 16 + ".npy"
    with (built.path / name).open("wb") as file:
        file.write(shards.header("|u1", [num_steps]))
        for edge in edges[1:-1]:
            file.seek(HEADER_BYTES + edge - 1)
            file.write(bytes([1, 2]))
        file.truncate(HEADER_BYTES + num_steps)
    values = {"file": name, "dtype": "|u1", "shape": [num_steps], "blocks": ["0" * 16] * (num_steps // BLOCK_BYTES)}

    def use_large(tree: Any) -> None:
        tree["columns"][0]["values"] = values
        tree["offsets"] = msgspec.to_builtins(write_shard(built.path, np.array(edges)))
        tree["num_series"], tree["num_steps"] = len(edges) - 1, num_steps

    edit_manifest(built.path, use_large)
    store = built.open()
    assert store.lengths.tolist() == np.diff(edges).tolist()
    assert [series["flag"].nonzero()[0].tolist() for series in (store[1], store[3])] == [[0, 9], [0, 9]]
    assert store[1]["flag"].tolist() == store[3]["flag"].tolist() == [2, *[0] * 8, 1]
    assert [store[i]["flag"][-1] for i in (0, 2)] == [1, 1]
    assert [store[i]["flag"][0] for i in (2, 4)] == [2, 2]
    assert store.to_arrow()["flag"].chunk(0)[3].as_py() == [2, *[0] * 8, 1]

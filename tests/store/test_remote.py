"""Remote stores: equal values from a cache of any size, uploads of which one wins, and buckets that lie."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness import edit_manifest, flip_byte
from tests.harness.object_folder import ObjectFolder, Storage
from tests.harness.range_server import FAULTS, Folder, serve

import stoker
from stoker.errors import (
    ManifestError,
    OptionError,
    StoreDamagedError,
    StoreError,
    StoreExistsError,
    StoreNotFoundError,
)
from stoker.store import RemoteStore, object_storage, remote, upload
from stoker.store.manifest import MANIFEST_NAME

pytestmark = pytest.mark.scale

BLOCK = 1 << 16


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage(tmp_path / "buckets", monkeypatch, BLOCK)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> stoker.Store:
    generator = np.random.default_rng(0)
    lengths = generator.integers(1, 20_000, 12)
    columns: dict[str, Any] = {
        "x": [generator.standard_normal(n) for n in lengths],
        "y": [generator.integers(0, 100, (n, 2)) for n in lengths],
        "weight": generator.random(12),
        "name": [f"series {i}" for i in range(12)],
    }
    return stoker.Store.from_arrays(**columns).save(tmp_path_factory.mktemp("remote") / "a.stoker")


def uploaded(storage: Storage, local: stoker.Store) -> ObjectFolder:
    upload(local.path, "test://a")
    return storage.backend("test://a")


def opened(tmp_path: Path, **options: Any) -> RemoteStore:
    store = stoker.open("test://a", cache=tmp_path / "cache", **{"cache_size": "2MB", **options})
    assert isinstance(store, RemoteStore)
    return store


@pytest.mark.promise("P31")
def test_values_are_those_of_the_local_store(storage: Storage, local: stoker.Store, tmp_path: Path) -> None:
    backend = uploaded(storage, local)
    backend.requests.clear()
    store = opened(tmp_path, cache_size="512KB")
    assert backend.requests["get"] == 2  # the manifest, and the list of blocks
    assert (store.digest, store.schema.keys(), store.num_bytes) == (local.digest, local.schema.keys(), local.num_bytes)
    assert store.where("weight > 0.5").tolist() == local.where("weight > 0.5").tolist()
    for one, other in zip(store, local, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in local.schema)
    assert store.cache.num_bytes <= 512 << 10
    fetched = store.traffic.bytes_read
    assert fetched < 1.3 * local.num_bytes
    with pytest.raises(StoreError, match=r"column 'y' of test://a has .* Raise cache_size, or read it by a Feed"):
        store.column("y")


def test_a_series_that_was_read_does_not_change_when_its_blocks_go(storage: Storage, local: stoker.Store, tmp_path: Path) -> None:
    uploaded(storage, local)
    store = opened(tmp_path, cache_size="512KB")
    kept = [store[i]["y"] for i in range(len(store))]
    assert all(np.array_equal(values, local[i]["y"]) for i, values in enumerate(kept))
    assert not kept[0].flags.writeable


def test_a_store_without_a_list_of_blocks_is_read_by_those_of_its_manifest(
    storage: Storage, local: stoker.Store, tmp_path: Path
) -> None:
    backend = uploaded(storage, local)
    next(backend.folder.glob("blocks-*")).unlink()
    store = opened(tmp_path, cache_size="64MB")
    assert store.cache.table.block_bytes == 16 << 20
    assert np.array_equal(store[3]["y"], local[3]["y"])


@pytest.mark.promise("P31")
def test_faults_never_reach_values(storage: Storage, local: stoker.Store, tmp_path: Path) -> None:
    backend = uploaded(storage, local)
    backend.fault_rate = 0.2
    store = opened(tmp_path, cache_size="512KB")
    for i in range(len(store)):
        assert np.array_equal(store[i]["x"], local[i]["x"])
    assert sum(backend.faults.values()) > 3


# ---- uploads ----


def test_an_upload_continues_and_refuses_a_second_one(storage: Storage, local: stoker.Store) -> None:
    backend = uploaded(storage, local)
    with pytest.raises(StoreExistsError, match=r"test://a holds a store already\. Give replace=True"):
        upload(local.path, "test://a")
    (backend.folder / MANIFEST_NAME).unlink()
    backend.requests.clear()
    upload(local.path, "test://a")
    assert backend.requests["put"] == 2  # shards are there already


@pytest.mark.promise("P31")
def test_the_manifest_comes_last(storage: Storage, local: stoker.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    monkeypatch.setattr(ObjectFolder, "put", lambda self, name, data, **_: names.append(name))
    upload(local.path, "test://a")
    assert names.index(MANIFEST_NAME) == len(names) - 1 > 0


@pytest.mark.promise("P31")
@pytest.mark.parametrize("replace", [False, True])
def test_of_two_writers_one_wins(storage: Storage, local: stoker.Store, tmp_path: Path, replace: bool) -> None:
    other = stoker.Store.from_arrays(x=[[1.0]]).save(tmp_path / "other.stoker")
    if replace:
        uploaded(storage, local)

    def race(done: int, total: int) -> None:
        if done == total:  # all shards are written, the manifest is not
            storage.backend("test://a").put(MANIFEST_NAME, b"another writer", tag=None, is_new=False)

    with pytest.raises(StoreExistsError, match="another writer has committed"):
        upload(other.path, "test://a", replace=replace, progress=race)
    assert storage.backend("test://a").get(MANIFEST_NAME, 100)[0] == b"another writer"


def test_a_damaged_store_is_not_uploaded(storage: Storage, local: stoker.Store, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(local.path, tmp_path / "copy.stoker"))
    flip_byte(max(copy.glob("*.npy"), key=lambda path: path.stat().st_size))
    with pytest.raises(StoreDamagedError, match=r"is damaged \(block 0\)"):
        upload(copy, "test://a")
    assert not (storage.backend("test://a").folder / MANIFEST_NAME).exists()


# ---- buckets that lie ----


def test_no_store_and_options_that_do_not_fit(storage: Storage, local: stoker.Store, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=r"test://a is not a store: it has no manifest\.json"):
        opened(tmp_path)
    uploaded(storage, local)
    with pytest.raises(OptionError, match="cache_size"):
        opened(tmp_path, cache_size="0")
    with pytest.raises(OptionError, match="cache and cache_size are for URLs"):
        stoker.open(str(local.path), cache=tmp_path)


def _swap(folder: Path) -> None:
    first, second = sorted(folder.glob("*.npy"), key=lambda path: path.stat().st_size)[-2:]
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)


def _shorten(folder: Path) -> None:
    for path in folder.glob("*.npy"):
        path.write_bytes(path.read_bytes()[: 128 + path.stat().st_size // 2])


def _lose(folder: Path) -> None:
    for path in folder.glob("*.npy"):
        path.unlink()


def _flip(folder: Path) -> None:
    for path in folder.glob("*.npy"):
        path.write_bytes(bytes(128) + bytes(path.stat().st_size - 128))


@pytest.mark.promise("P31")
@pytest.mark.parametrize("change", [_swap, _shorten, _lose, _flip])
def test_a_bucket_with_other_shards_ends_in_one_line(
    storage: Storage, local: stoker.Store, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    backend = uploaded(storage, local)
    change(backend.folder)

    def read() -> None:
        for series in opened(tmp_path):
            _ = series["x"], series["y"]

    with pytest.raises((StoreDamagedError, StoreNotFoundError)) as caught:
        read()
    assert "\n" not in str(caught.value)
    assert "test://a/" in str(caught.value)


@pytest.mark.promise("P31")
@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "a/b.npy", "..", "0123456789abcdef.npy\0"])
def test_a_manifest_with_names_that_lead_elsewhere_is_refused(
    storage: Storage, local: stoker.Store, tmp_path: Path, name: str
) -> None:
    backend = uploaded(storage, local)
    edit_manifest(backend.folder, lambda tree: tree["columns"][0]["values"].update(file=name))
    with pytest.raises(ManifestError, match=r"test://a/manifest\.json at \$\.columns\[0\]\.values\.file: expected 16 hex digits"):
        opened(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_a_manifest_of_any_size_and_a_wrong_list_are_refused(
    storage: Storage, local: stoker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = uploaded(storage, local)
    blocks = next(backend.folder.glob("blocks-*"))
    data = blocks.read_bytes()
    for wrong in (b"", data[:-8], data[8:], bytes(len(data))):
        blocks.write_bytes(wrong)
        with pytest.raises(StoreDamagedError, match="is not the list of blocks of this store"):
            opened(tmp_path)
    monkeypatch.setattr(remote, "MAX_BYTES", 100)
    with pytest.raises(ManifestError):
        opened(tmp_path)


# ---- over HTTP ----


@pytest.fixture
def _quick_http(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    monkeypatch.setattr(object_storage, "BACKOFF_S", 0.0)
    monkeypatch.setattr(object_storage, "TIMEOUT_S", 10.0)


def _read_all(url: str, local: stoker.Store, cache: Path) -> None:
    store = stoker.open(url, cache=cache, cache_size="512KB")
    for i in range(len(store)):
        assert all(np.array_equal(store[i][name], local[i][name]) for name in ("x", "y"))


def _upload_beside(local: stoker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The objects of an upload, in a folder."""
    with monkeypatch.context() as patch:
        backend = uploaded(Storage(tmp_path / "buckets", patch, BLOCK), local)
    monkeypatch.setattr(remote, "UPLOAD_BLOCK_BYTES", BLOCK)
    return backend.folder


def _faults(rate: float, seed: int) -> Callable[[str], str]:
    generator = np.random.default_rng(seed)
    return lambda name: str(generator.choice(FAULTS)) if name.endswith(".npy") and generator.random() < rate else ""


@pytest.mark.promise("P31")
@pytest.mark.usefixtures("_quick_http")
def test_a_server_that_fails_gives_right_values(local: stoker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _upload_beside(local, tmp_path, monkeypatch)
    with serve(Folder(folder), _faults(0.15, 0)) as server:
        _read_all(server.url + "/", local, tmp_path / "cache")
        assert sum(server.faults.values()) > 3


@pytest.mark.promise("P31")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("_quick_http")
def test_ten_thousand_faults_give_no_wrong_value_and_no_hang(
    local: stoker.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _upload_beside(local, tmp_path, monkeypatch)
    monkeypatch.setattr(object_storage, "WRONG_BYTES", 100)
    monkeypatch.setattr(object_storage, "ATTEMPTS", 100)
    with serve(Folder(folder), _faults(0.7, 1)) as server:
        rounds = 0
        while sum(server.faults.values()) < 10_000:
            _read_all(server.url + "/", local, tmp_path / f"cache{rounds}")
            shutil.rmtree(tmp_path / f"cache{rounds}")
            rounds += 1
        assert set(server.faults) >= set(FAULTS)


def test_inspect_and_verify_take_the_url_of_a_store(storage: Storage, local: stoker.Store) -> None:
    uploaded(storage, local)
    summary = stoker.inspect("test://a").to_dict()
    expected = stoker.inspect(local).to_dict()
    assert {name: summary[name] for name in summary if name != "path"} == {
        name: expected[name] for name in expected if name != "path"
    }
    done, steps = stoker.verify(local.path), []
    assert stoker.verify("test://a", report=lambda part, total: steps.append((part, total))) == done
    assert steps[-1] == (done.num_bytes, done.num_bytes)


@pytest.mark.parametrize("at", [0, 130, -1])
def test_verify_finds_a_changed_byte_of_a_remote_store(storage: Storage, local: stoker.Store, at: int) -> None:
    backend = uploaded(storage, local)
    shard = next(column.values for column in local.manifest.columns if column.name == "y")
    flip_byte(backend.folder / shard.file, at)
    with pytest.raises(StoreDamagedError, match=f"test://a is damaged: {shard.file} .column 'y'.* Upload the store again"):
        stoker.verify("test://a")

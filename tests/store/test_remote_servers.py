"""Remote stores against servers of S3, Azure and GCS: conditional puts, ranges, listings, credentials."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.gcs_server import gcs_server
from tests.harness.storage_servers import SERVERS
from tests.store.pack.cluster import pack_on_fake, small_tasks, write_events

import stoker
from stoker.errors import SourceChangedError, StorageError, StoreExistsError, StoreNotFoundError
from stoker.store import remote, upload
from stoker.store.manifest import MANIFEST_NAME
from stoker.store.object_storage import open_bucket

pytestmark = pytest.mark.scale


@pytest.fixture(scope="module", params=SERVERS)
def bucket(request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a bucket; the environment has the address of its server."""
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    with SERVERS[request.param]() as url, pytest.MonkeyPatch.context() as patch:
        patch.setattr(remote, "UPLOAD_BLOCK_BYTES", 1 << 16)
        yield url


def stores(tmp_path: Path) -> tuple[stoker.Store, stoker.Store]:
    """Two that differ."""
    values = np.random.default_rng(0).standard_normal((8, 20_000))
    return (
        stoker.Store.from_arrays(x=values, name=list("abcdefgh")).save(tmp_path / "a.stoker"),
        stoker.Store.from_arrays(x=-values).save(tmp_path / "b.stoker"),
    )


def test_a_store_goes_there_and_comes_back(bucket: str, tmp_path: Path) -> None:
    local, other = stores(tmp_path)
    url = f"{bucket}/folder/a.stoker"
    with pytest.raises(StoreNotFoundError, match="is not a store"):
        stoker.open(url, cache=tmp_path / "cache")
    upload(local.path, url)
    there = stoker.open(url, cache=tmp_path / "cache", cache_size="512KB")
    assert all(np.array_equal(one["x"], two["x"]) for one, two in zip(there, local, strict=True))
    with pytest.raises(StoreExistsError, match="holds a store already"):
        upload(other.path, url)
    upload(other.path, url, replace=True)
    assert np.array_equal(stoker.open(url, cache=tmp_path / "cache", cache_size="2MB").column("x"), other.column("x"))


@pytest.mark.parametrize("replace", [False, True])
def test_of_two_writers_one_wins(bucket: str, tmp_path: Path, replace: bool) -> None:
    first, second = stores(tmp_path)
    url = f"{bucket}/{'replaced' if replace else 'new'}.stoker"
    if replace:
        upload(second.path, url)
    path = first.path

    def race(done: int, total: int) -> None:
        if done == total:
            upload(path, url, replace=replace)

    with pytest.raises(StoreExistsError, match="another writer has committed"):
        upload(second.path, url, replace=replace, progress=race)
    assert stoker.open(url, cache=tmp_path / "cache", cache_size="2MB").digest == first.digest


def test_a_pack_goes_there(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    table = {"k": ["b", "a", "a"], "x": [1.0, 2.0, 3.0]}
    packed = stoker.pack(table, f"{bucket}/packed.stoker", series="k")
    assert [one["x"].tolist() for one in packed] == [[2.0, 3.0], [1.0]]
    assert packed.digest == stoker.pack(table, tmp_path / "packed.stoker", series="k").digest
    assert not list((tmp_path / "home" / "stoker" / "uploads").glob("*"))


def test_a_pack_on_a_cluster_from_bucket_to_bucket(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    small_tasks(monkeypatch)
    local = Path(write_events(tmp_path / "raw", files=2)).parent
    raw = open_bucket(f"{bucket}/raw")
    for path in sorted(local.iterdir()):
        raw.put(f"2026/{path.name}", path.read_bytes())
    source, target, options = (
        f"{bucket}/raw/**/*.parquet",
        f"{bucket}/out/ray.stoker",
        {"series": "user", "time": "ts", "sort": True},
    )
    pack_on_fake(source, target, **options)
    one = stoker.pack(source, tmp_path / "one.stoker", **options)
    assert stoker.open(target, cache=tmp_path / "cache", cache_size="2MB").digest == one.digest
    assert not open_bucket(f"{target}.parts").find()
    with pytest.raises(StoreExistsError, match="holds a store already"):
        pack_on_fake(source, target, **options)
    raw.put("2026/0.parquet", (local / "1.parquet").read_bytes())
    assert stoker.pack(f"{bucket}/raw/2026/1.parquet", tmp_path / "two.stoker", **options).num_steps * 2 == one.num_steps


def test_an_object_that_is_replaced_between_two_tasks(bucket: str, tmp_path: Path) -> None:
    place = open_bucket(f"{bucket}/changing")
    for name in "ab":
        place.put(f"{name}.csv", b"k,x\n1,2\n")

    def run(function: Any, *args: Any) -> Any:
        if args[1] == "read":
            place.put("b.csv", b"k,x\n1,3\n")
        return function(*args)

    with pytest.raises(SourceChangedError, match=r"the sources differ between nodes, or changed since the pack began: b\.csv"):
        pack_on_fake(f"{bucket}/changing/*.csv", tmp_path / "a.stoker", run=run, series="k")


HIDDEN = {"s3": ("AWS_ENDPOINT_URL", "AWS_SECRET_ACCESS_KEY"), "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_KEY")}


def test_errors_hold_no_credentials(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.store.object_storage.BACKOFF_S", 0.0)
    address, key = HIDDEN.get(bucket.partition(":")[0], ("GOOGLE_SERVICE_ACCOUNT_KEY", ""))
    account = {
        "gcs_base_url": "http://127.0.0.1:9",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    monkeypatch.setenv(address, "http://127.0.0.1:9" if key else json.dumps(account | {"private_key": "SECRET"}))
    with pytest.raises(StorageError) as caught:
        stoker.open(f"{bucket}/a.stoker", cache=tmp_path / "cache")
    assert MANIFEST_NAME in str(caught.value)
    assert os.environ.get(key, "SECRET") not in str(caught.value)


def test_what_a_bucket_is_asked(bucket: str) -> None:
    """Create-only puts, puts of what was read, ranges, listings of several pages, puts in parts, and removals."""
    place = open_bucket(f"{bucket}/some folder/ü")
    assert place.size("a") is None
    place.put("a", b"first", is_new=True)
    data, tag = place.get("a", 100)
    assert data == b"first"
    with pytest.raises(StoreExistsError, match="exists already"):
        place.put("a", b"second", is_new=True)
    place.put("a", b"second", tag=tag)
    with pytest.raises(StoreExistsError, match="was changed by another writer"):
        place.put("a", b"third", tag=tag)
    assert place.get("a", 100)[0] == b"second"
    large = bytes(range(256)) * (11 << 12)  # more than one part
    place.put("large", large)
    assert place.size("large") == len(large)
    assert bytes(place.get_range("large", 300, 700, lambda found: True)) == large[300:700]
    for i in range(90):
        place.put(f"many/{i:02}", bytes(i))
    assert [(one.name, one.num_bytes) for one in place.find("many/")] == [(f"many/{i:02}", i) for i in range(90)]
    for one in place.find():
        place.remove(one.name)
    place.remove("large")  # is gone already
    assert not place.find()
    with pytest.raises(StoreNotFoundError, match="does not exist"):
        place.get("a", 100)


def test_negative_control_a_server_that_ignores_conditions_lets_both_writers_win() -> None:
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    with gcs_server(checks_generations=False):
        place = open_bucket("gs://bucket/a")
        place.put("a", b"first", is_new=True)
        place.put("a", b"second", is_new=True)
        assert place.get("a", 100)[0] == b"second"

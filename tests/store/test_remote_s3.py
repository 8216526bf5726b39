"""Remote stores against a server with the semantics of S3: conditional puts, ranges, credentials."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.store.pack.part_inputs import pack_in_parts, write_events

import stoker
from stoker.errors import SourceChangedError, StorageError, StoreExistsError, StoreNotFoundError
from stoker.store import remote
from stoker.store.manifest import MANIFEST_NAME
from stoker.store.object_storage import open_bucket
from stoker.store.pack import parts, shared_plan
from stoker.store.pack.api import join_parts, pack_part
from stoker.store.remote import upload


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """The URL of a bucket of a moto server; the environment has its address."""
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    pytest.importorskip("moto", reason="make test-scale installs moto")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": address}
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**keys, "AWS_ALLOW_HTTP": "true"}.items():
                patch.setenv(name, value)
            patch.setattr(remote, "UPLOAD_BLOCK_BYTES", 1 << 16)
            _make_bucket(address)
            yield "s3://bucket"
    finally:
        server.terminate()
        server.wait()


def _make_bucket(address: str) -> None:
    for _ in range(300):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT"), timeout=10).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise TimeoutError("the server of moto did not start within a minute")


def stores(tmp_path: Path) -> tuple[stoker.Store, stoker.Store]:
    """Two that differ."""
    values = np.random.default_rng(0).standard_normal((8, 20_000))
    return (
        stoker.Store.from_arrays(x=values, name=list("abcdefgh")).save(tmp_path / "a.stoker"),
        stoker.Store.from_arrays(x=-values).save(tmp_path / "b.stoker"),
    )


def test_a_store_goes_to_s3_and_comes_back(s3: str, tmp_path: Path) -> None:
    local, other = stores(tmp_path)
    assert local.path is not None
    assert other.path is not None
    url = f"{s3}/folder/a.stoker"
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
def test_of_two_writers_one_wins(s3: str, tmp_path: Path, replace: bool) -> None:
    first, second = stores(tmp_path)
    assert first.path is not None
    assert second.path is not None
    url = f"{s3}/{'replaced' if replace else 'new'}.stoker"
    if replace:
        upload(second.path, url)
    path = first.path

    def race(done: int, total: int) -> None:
        if done == total:
            upload(path, url, replace=replace)

    with pytest.raises(StoreExistsError, match="another writer has committed"):
        upload(second.path, url, replace=replace, progress=race)
    assert stoker.open(url, cache=tmp_path / "cache", cache_size="2MB").digest == first.digest


def test_a_pack_goes_to_s3(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    table = {"k": ["b", "a", "a"], "x": [1.0, 2.0, 3.0]}
    packed = stoker.pack(table, f"{s3}/packed.stoker", series="k")
    assert [one["x"].tolist() for one in packed] == [[2.0, 3.0], [1.0]]
    assert packed.digest == stoker.pack(table, tmp_path / "packed.stoker", series="k").digest
    assert not list((tmp_path / "home" / "stoker" / "uploads").glob("*"))


def test_a_pack_in_parts_from_s3_to_s3(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(shared_plan, "MIN_TASK_BYTES", 2000)
    monkeypatch.setattr(parts, "MIN_RANGE_BYTES", 3000)
    monkeypatch.setattr(parts, "_REPORT_NS", 0)
    local = Path(write_events(tmp_path / "raw", files=2)).parent
    bucket = open_bucket(f"{s3}/raw")
    for path in sorted(local.iterdir()):
        bucket.put(f"2026/{path.name}", path.read_bytes())
    source, target, options = f"{s3}/raw/**/*.parquet", f"{s3}/out/parts.stoker", {"series": "user", "time": "ts", "sort": True}
    pack_in_parts(source, target, 3, merge=True, **options)
    one = stoker.pack(source, tmp_path / "one.stoker", **options)
    assert stoker.open(target, cache=tmp_path / "cache", cache_size="2MB").digest == one.digest
    assert not open_bucket(f"{target}.parts").find()
    with pytest.raises(StoreExistsError, match="holds a store already"):
        pack_part(source, target, "1/1", **options)
    pack_part(source, target, "1/1", replace=True, **options)
    with monkeypatch.context() as patch:  # killed after its commit
        patch.setattr(parts.PartedPack, "clear", lambda self: None)
        join_parts(source, target, replace=True, **options)
    puts = open_bucket(target).find()
    join_parts(source, target, **options)
    assert open_bucket(target).find() == puts
    assert not open_bucket(f"{target}.parts").find()
    bucket.put("2026/0.parquet", (local / "1.parquet").read_bytes())
    assert stoker.pack(f"{s3}/raw/2026/1.parquet", tmp_path / "two.stoker", **options).num_steps * 2 == one.num_steps


def test_an_object_that_is_replaced_between_two_parts(s3: str, tmp_path: Path) -> None:
    bucket = open_bucket(f"{s3}/changing")
    for name in "ab":
        bucket.put(f"{name}.csv", b"k,x\n1,2\n")
    pack_part(f"{s3}/changing/*.csv", tmp_path / "a.stoker", "1/2", series="k")
    bucket.put("b.csv", b"k,x\n1,3\n")
    with pytest.raises(SourceChangedError, match=r"b\.csv has changed since it was in the plan"):
        pack_part(f"{s3}/changing/*.csv", tmp_path / "a.stoker", "2/2", series="k")


def test_errors_hold_no_credentials(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.store.object_storage.BACKOFF_S", 0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError) as caught:
        stoker.open(f"{s3}/a.stoker", cache=tmp_path / "cache")
    assert MANIFEST_NAME in str(caught.value)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)

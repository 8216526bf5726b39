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

import stoker
from stoker.errors import StorageError, StoreExistsError, StoreNotFoundError
from stoker.store import remote
from stoker.store.manifest import MANIFEST_NAME
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


def test_errors_hold_no_credentials(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stoker.store.object_storage.BACKOFF_S", 0.0)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(StorageError) as caught:
        stoker.open(f"{s3}/a.stoker", cache=tmp_path / "cache")
    assert MANIFEST_NAME in str(caught.value)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)

"""Remote stores against Azurite, the emulator of Azure's blob storage. `make test-scale` installs it where npm is there."""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import numpy as np
import pytest
from tests.store.pack.part_inputs import pack_in_parts, write_events

import stoker
from stoker.errors import StoreExistsError
from stoker.store import remote
from stoker.store.object_storage import open_bucket
from stoker.store.remote import upload

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public: that of every emulator


def find_azurite() -> str | None:
    """The program, beside the environment of this Python or on the path."""
    beside = Path(sys.prefix) / "node_modules" / ".bin" / "azurite-blob"
    return str(beside) if beside.exists() else shutil.which("azurite-blob")


@pytest.fixture(scope="module")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a container; the environment has its address."""
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    program = find_azurite()
    if program is None:
        pytest.skip("make test-scale installs azurite where npm is there")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = [
        program,
        "--blobHost",
        "127.0.0.1",
        "--blobPort",
        str(port),
        "--inMemoryPersistence",
        "--silent",
        "--skipApiVersionCheck",
    ]
    folder = tmp_path_factory.mktemp("azurite")
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    names = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_ENDPOINT": address}
    try:
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**names, "AZURE_ALLOW_HTTP": "true"}.items():
                patch.setenv(name, value)
            patch.setattr(remote, "UPLOAD_BLOCK_BYTES", 1 << 16)
            _make_container(address)
            yield "az://container"
    finally:
        server.terminate()
        server.wait()


def _make_container(address: str) -> None:
    """A request that is signed with the shared key, repeated until the server is up."""
    for _ in range(300):
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
        lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
        resource = f"/{ACCOUNT}/{ACCOUNT}/container\nrestype:container"
        signed = hmac.new(base64.b64decode(KEY), ("\n".join(lines) + "\n" + resource).encode(), hashlib.sha256).digest()
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
        request = urllib.request.Request(f"{address}/container?restype=container", method="PUT", headers=headers, data=b"")
        request.add_unredirected_header("Content-Type", "")
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from None
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise TimeoutError("azurite did not start within a minute")


def test_a_store_goes_to_azure_and_comes_back(azure: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((8, 20_000))
    first = stoker.Store.from_arrays(x=values).save(tmp_path / "a.stoker")
    second = stoker.Store.from_arrays(x=-values).save(tmp_path / "b.stoker")
    assert first.path is not None
    assert second.path is not None
    url = f"{azure}/folder/a.stoker"
    upload(first.path, url)
    there = stoker.open(url, cache=tmp_path / "cache", cache_size="512KB")
    assert all(np.array_equal(one["x"], two["x"]) for one, two in zip(there, first, strict=True))
    with pytest.raises(StoreExistsError, match="holds a store already"):
        upload(second.path, url)
    path = first.path

    def race(done: int, total: int) -> None:
        if done == total:
            upload(path, url, replace=True)

    with pytest.raises(StoreExistsError, match="another writer has committed"):
        upload(second.path, url, replace=True, progress=race)
    upload(second.path, url, replace=True)
    assert stoker.open(url, cache=tmp_path / "cache", cache_size="2MB").digest == second.digest


def test_a_pack_in_parts_on_azure(azure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    local = Path(write_events(tmp_path / "raw", files=2)).parent
    bucket = open_bucket(f"{azure}/raw")
    for path in sorted(local.iterdir()):
        bucket.put(path.name, path.read_bytes())
    pack_in_parts(f"{azure}/raw/*.parquet", f"{azure}/parts.stoker", 2, merge=True, series="user")
    one = stoker.pack(f"{azure}/raw/*.parquet", tmp_path / "one.stoker", series="user")
    assert stoker.open(f"{azure}/parts.stoker", cache=tmp_path / "cache", cache_size="2MB").digest == one.digest
    assert not open_bucket(f"{azure}/parts.stoker.parts").find()
    assert os.environ["AZURE_STORAGE_ACCOUNT_KEY"] not in (tmp_path / "one.stoker" / "manifest.json").read_text()

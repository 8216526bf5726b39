"""Servers of object storage on 127.0.0.1: moto for S3, Azurite for Azure, and `gcs_server` for GCS.

Each is a context that yields the URL of an empty bucket. The environment has the address and keys meanwhile. A test is skipped where a
server is not installed; `make test-scale` installs moto, and Azurite where npm is there.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from email.utils import formatdate
from pathlib import Path

import pytest
from tests.harness.gcs_server import gcs_server

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # public: that of every emulator


@contextlib.contextmanager
def s3() -> Iterator[str]:
    """A bucket of a moto server."""
    pytest.importorskip("moto", reason="make test-scale installs moto")
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "SECRET", "AWS_REGION": "us-east-1", "AWS_ENDPOINT_URL": address}
    with _running([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], keys | {"AWS_ALLOW_HTTP": "true"}):
        _repeat(lambda: urllib.request.Request(f"{address}/bucket", method="PUT"))
        yield "s3://bucket"


@contextlib.contextmanager
def azure() -> Iterator[str]:
    """A container of Azurite."""
    program = _find_azurite()
    if program is None:
        pytest.skip("make test-scale installs azurite where npm is there")
    port = _free_port()
    address = f"http://127.0.0.1:{port}/{ACCOUNT}"
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--inMemoryPersistence", "--silent", "--skipApiVersionCheck"]
    names = {"AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT, "AZURE_STORAGE_ACCOUNT_KEY": KEY, "AZURE_STORAGE_ENDPOINT": address}
    with _running(command, names | {"AZURE_ALLOW_HTTP": "true"}):
        _repeat(lambda: _new_container(address))
        yield "az://container"


@contextlib.contextmanager
def gcs() -> Iterator[str]:
    """A bucket of a server of our own."""
    with gcs_server():
        yield "gs://bucket"


SERVERS: dict[str, Callable[[], AbstractContextManager[str]]] = {"s3": s3, "azure": azure, "gcs": gcs}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str]) -> Iterator[None]:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        server = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name, value in environment.items():
            patch.setenv(name, value)
        try:
            yield
        finally:
            server.terminate()
            server.wait()


def _repeat(request: Callable[[], urllib.request.Request]) -> None:
    """A request, until the server is up."""
    for _ in range(300):
        try:
            urllib.request.urlopen(request(), timeout=10).close()
            return
        except urllib.error.HTTPError as error:
            raise RuntimeError(error.read().decode()[:500]) from None
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise TimeoutError("the server did not start within a minute")


def _find_azurite() -> str | None:
    """The program, beside the environment of this Python or on the path."""
    beside = Path(sys.prefix) / "node_modules" / ".bin" / "azurite-blob"
    return str(beside) if beside.exists() else shutil.which("azurite-blob")


def _new_container(address: str) -> urllib.request.Request:
    """A request that is signed with the shared key."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    lines = ["PUT", *[""] * 11, *(f"{name}:{value}" for name, value in headers.items())]
    resource = f"/{ACCOUNT}/{ACCOUNT}/container\nrestype:container"
    signed = hmac.new(base64.b64decode(KEY), ("\n".join(lines) + "\n" + resource).encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(signed).decode()}"
    request = urllib.request.Request(f"{address}/container?restype=container", method="PUT", headers=headers, data=b"")
    request.add_unredirected_header("Content-Type", "")
    return request

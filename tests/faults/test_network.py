"""The guard of the test suite: nothing contacts another host, neither from Python nor from a library of another language."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.harness import network
from tests.harness.network import OutsideError

from stoker.errors import StokerError
from stoker.store import object_storage
from stoker.store.object_storage import open_bucket

OUTSIDE = "203.0.113.1"  # an address for documentation, which no network has


@pytest.fixture
def refused() -> Iterator[list[str]]:
    """What was refused in this test, which is meant to try."""
    yield network.attempts
    network.attempts.clear()


def test_a_connection_to_another_host_is_refused(refused: list[str]) -> None:
    with socket.socket() as one, pytest.raises(OutsideError, match=rf"connect '{OUTSIDE}': tests contact nothing outside"):
        one.connect((OUTSIDE, 80))
    with socket.socket() as one, pytest.raises(OutsideError):
        one.connect_ex((OUTSIDE, 80))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one, pytest.raises(OutsideError):
        one.sendto(b"x", (OUTSIDE, 53))
    with pytest.raises(OutsideError, match=r"lookup of 'example\.org'"):
        socket.create_connection(("example.org", 80), timeout=1)
    assert len(refused) == 4


def test_negative_control_loopback_works(refused: list[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as one:
        there, _ = server.accept()
        with there:
            one.sendall(b"x")
            assert there.recv(1) == b"x"
    assert refused == []


def test_a_refusal_that_is_swallowed_fails_the_test(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_addoption, pytest_configure, stays_on_this_machine\n")
    (tmp_path / "test_two.py").write_text(
        "import contextlib, socket\n"
        "def test_tries():\n"
        "    with contextlib.suppress(Exception):\n"
        f"        socket.create_connection(('{OUTSIDE}', 80), timeout=1)\n"
        "def test_does_not():\n"
        "    pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path)]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert "2 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert f"the test contacts other hosts: lookup of '{OUTSIDE}'" in done.stdout


def test_requests_of_object_storage_go_to_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the closed proxy of all other tests they go nowhere: not even to the address that gives credentials."""
    pytest.importorskip("obstore", reason="needs stoker[remote]")
    monkeypatch.setattr(object_storage, "ATTEMPTS", 1)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        for name in network.PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.getsockname()[1]}")
        asked = pool.submit(lambda: open_bucket("s3://bucket/a").get("manifest.json", 10))
        there, _ = server.accept()
        with there:
            line = there.recv(4096).decode().partition("\r\n")[0]
        server.close()
        assert isinstance(asked.exception(), StokerError | OSError)
    assert line == "PUT http://169.254.169.254/latest/api/token HTTP/1.1"

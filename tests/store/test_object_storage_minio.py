"""The page about MinIO: its settings reach the storage client, and its commands run against a server."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calling import Done
from tests.harness.gcs_server import GcsServer
from tests.harness.s3_server import s3_server

import stoker
from stoker.errors import StokerError

pytest.importorskip("obstore", reason="needs stoker[remote]")
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "minio.md"
URL = "s3://bucket/sensors.stoker"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, GcsServer]]:
    """A server, an empty environment, and a folder with raw files and a configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("stoker.store.object_storage.BACKOFF_S", 0.0)
    monkeypatch.setattr("stoker.store.object_storage.ATTEMPTS", 2)
    monkeypatch.setenv("STOKER_CACHE", str(tmp_path / "cache"))
    for name in ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"):
        monkeypatch.setenv(name, "x")  # restored at the end, also what the page sets
        monkeypatch.delenv(name)
    Path("raw").mkdir()
    rows = [f"{sensor},{step},{step / 7}" for sensor in "ab" for step in range(40)]
    Path("raw/a.csv").write_text("\n".join(["sensor,ts,x", *rows, ""]))
    Path("config.yaml").write_text(
        f"data: {{store: '{URL}', view: {{name: windows, length: 8, horizon: 2}}, batch_size: 16}}\n"
        "model: linear\ntrain: {epochs: 1, device: cpu, execution: {compile: false}}\n"
    )
    with s3_server() as (address, server):
        yield address, server


def page_lines(address: str) -> tuple[dict[str, str], list[list[str]]]:
    """The settings and the commands of the page."""
    block = re.search(r"```text\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert block is not None
    lines = [shlex.split(line, comments=True) for line in block[1].replace("http://minio:9000", address).splitlines()]
    settings = [word.partition("=") for line in lines if line[0] == "export" for word in line[1:]]
    return {name: value for name, _, value in settings}, [line[1:] for line in lines if line[0] == "stoker"]


def test_the_commands_of_the_page_run_against_a_server(
    server: tuple[str, GcsServer], stoker: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, storage = server
    settings, commands = page_lines(address)
    assert [command[0] for command in commands] == ["pack", "inspect", "train"]
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    for command in commands:
        done = stoker(*command)
        assert done.code == 0, done.err
    assert "bucket/sensors.stoker/manifest.json" in storage.objects
    assert Path("runs/config/checkpoints/LATEST").exists()


def test_each_setting_of_the_page_is_needed(server: tuple[str, GcsServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: without a setting, nothing of the server is read."""
    address, storage = server
    settings, _ = page_lines(address)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    values = np.arange(12.0).reshape(3, 4)
    stoker.store.upload(stoker.Store.from_arrays(x=values).save(tmp_path / "local.stoker").path, URL)
    assert np.array_equal(stoker.open(URL, cache=tmp_path / "first").column("x"), values.reshape(-1))
    for name in ("AWS_ENDPOINT_URL", "AWS_ALLOW_HTTP", "AWS_ACCESS_KEY_ID"):
        storage.requests.clear()
        with monkeypatch.context() as patch:
            patch.delenv(name)
            with pytest.raises(StokerError):
                stoker.open(URL, cache=tmp_path / name)
        assert storage.requests == []

"""`torchrun --nnodes 1:3 -m stoker train`: nodes are killed, leave and join, and the run does what one process does, to the last bit.

Each node is an agent of torchrun on this machine, with one process, and all traffic is on the loopback interface.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.calling import call, stoker_command

import stoker
from stoker.train.run import read_record

pytestmark = pytest.mark.scale

MODEL = """
import os, time
from torch import nn

class Slow(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.1), nn.Linear(16, 1))

    def forward(self, batch):
        time.sleep(float(os.environ.get("BATCH_SECONDS", "0")))
        return self.inner(batch["x"]).unsqueeze(-1)

def make(task):
    return Slow()
"""
CONFIG = """
data: {store: w.stoker, view: {name: windows, length: 8, horizon: 1}, batch_size: 8, global_batch_size: 32, scale: false}
model: {name: own, function: "model.py:make"}
train: {epochs: 2, checkpoints: {every: 5}, folder: run, logging: {every: 1}, seed: 3}
"""
STEPS = 2 * 31


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    values = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    stoker.Store.from_arrays(x=[values]).save(tmp_path / "w.stoker")
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


class Nodes:
    """Agents of torchrun on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._all: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        """One more; the first one is where they meet."""
        settings = {"join_timeout": 60, "last_call_timeout": 1, "keep_alive_interval": 1, "is_host": str(not self._all).lower()}
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:3", "--nproc-per-node", "1", "--max-restarts", "20",
            "--rdzv-id", "job", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}",
            "--rdzv-conf", ",".join(f"{name}={value}" for name, value in settings.items()),
            "-m", "stoker", "train", "c.yaml", "--quiet",
        ]  # fmt: skip
        path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
        given = {
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "BATCH_SECONDS": "0.25", "PYTHONPATH": path,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }  # fmt: skip
        with (self._folder / f"node-{len(self._all)}.log").open("wb") as log:
            one = subprocess.Popen(
                command, cwd=self._folder, env={**os.environ, **given}, stdout=log, stderr=log, start_new_session=True
            )
        self._all.append(one)
        return one

    def kill(self, one: subprocess.Popen[bytes]) -> None:
        """kill -9 of an agent and its process, as if the machine were gone."""
        children = Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split() if one.poll() is None else []
        for pid in (one.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
        one.wait()

    def end(self) -> None:
        for one in self._all:
            if one.poll() is None:
                self.kill(one)


@pytest.fixture
def nodes(folder: Path) -> Iterator[Nodes]:
    found = Nodes(folder)
    yield found
    found.end()


def losses(run: Path) -> list[tuple[int, Any, Any]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [(line["step"], line.get("loss"), line.get("epoch_loss")) for line in lines]


def wait_for_step(folder: Path, step: int, seconds: float = 100) -> None:
    deadline = time.monotonic() + seconds
    path = folder / "run" / "metrics.jsonl"
    while not (path.exists() and len(path.read_bytes().splitlines()) >= step):
        assert time.monotonic() < deadline, [one.read_text()[-3000:] for one in folder.glob("node-*.log")]
        time.sleep(0.05)


@pytest.mark.promise("P33")
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_node_is_killed_and_another_one_joins(folder: Path, nodes: Nodes) -> None:
    """2 -> 1 -> 2 processes amid epochs: every update has the loss that one process has, to the last bit."""
    first, second = nodes.start(), nodes.start()
    wait_for_step(folder, 8)
    nodes.kill(second)
    wait_for_step(folder, 11)
    third = nodes.start()
    assert first.wait(timeout=300) == 0, (folder / "node-0.log").read_text()[-3000:]
    assert third.wait(timeout=60) == 0
    alone = call(stoker_command("train", "c.yaml", "--quiet", "--set", "folder=alone"), folder, OMP_NUM_THREADS="1")
    assert alone.code == 0, alone.err
    assert losses(folder / "run") == losses(folder / "alone")
    weights = [next((folder / run / "checkpoints").glob(f"step-{STEPS:09d}*/model.safetensors")) for run in ("run", "alone")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    sessions = read_record(folder / "run").sessions
    assert len(sessions) >= 3
    assert {one.launch for one in sessions} == {"job"}
    assert "signal" in [one.how for one in sessions]  # when the node joined, all was saved first

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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.calling import call, stoker_command

import stoker
from stoker.errors import ConfigError
from stoker.experiment import prepare
from stoker.train.run import Record, RunSession, is_restart, read_record, write_record

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
train: {epochs: 2, save_every: 5, folder: run, log_every: 1, seed: 3}
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
            "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "BATCH_SECONDS": "0.03", "PYTHONPATH": path,
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


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_node_is_killed_and_another_one_joins(folder: Path, nodes: Nodes) -> None:
    """2 -> 1 -> 2 processes amid epochs: every update has the loss that one process has, to the last bit."""
    first, second = nodes.start(), nodes.start()
    wait_for_step(folder, 8)
    nodes.kill(second)
    wait_for_step(folder, 20)
    third = nodes.start()
    assert first.wait(timeout=200) == 0, (folder / "node-0.log").read_text()[-3000:]
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


# ---- when a process is a restart ----


def session(**values: Any) -> RunSession:
    given: Any = {"started": "2026-11-17T12:00:00.000Z", "from_step": 0, "process": 1, "command": [], "folder": "", "config": {}}
    machine = {"host": "", "system": "", "cpu": "", "cores": 1, "memory_bytes": 1, "gpus": [], "driver": None}
    import msgspec

    from stoker.train.run import Computer

    return RunSession(**given, stores={}, versions={}, machine=msgspec.convert(machine, Computer), git=None, **values)


@pytest.mark.parametrize(
    ("launch", "count", "saved", "expected"),
    [
        (None, None, {"launch": None}, False),  # no torchrun
        ("a", "0", {"launch": "a"}, True),  # a node has joined or left: torchrun counts no restart
        ("a", "0", {"launch": "a", "how": "signal"}, True),
        ("a", "0", {"launch": "a", "how": "finished"}, False),  # a new run with the id of an old one
        ("a", "0", {"launch": "b"}, False),
        ("none", "0", {"launch": "none"}, False),  # the user gave no id
        ("none", "1", {"launch": "none"}, True),
        ("b", "2", {"launch": "a"}, True),
    ],
)
def test_what_counts_as_a_restart(
    launch: str | None, count: str | None, saved: Any, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("TORCHELASTIC_RUN_ID", launch), ("TORCHELASTIC_RESTART_COUNT", count)):
        monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
    assert not is_restart(tmp_path)  # there is no run
    write_record(tmp_path, Record(sessions=[session(), session(**saved)]))
    assert is_restart(tmp_path) == expected


def test_a_restart_resumes_and_does_not_overwrite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    begin: Callable[..., prepare.RunPlan] = lambda **given: prepare.prepare(  # noqa: E731
        "c.yaml", **{"overrides": (), "folder": None, "resume": False, "allow": (), "overwrite": True, **given}
    )
    config = stoker.experiment.load("c.yaml", overrides=["epochs=1"])
    stoker.experiment.run(config, progress=False)
    assert not begin(overrides=["epochs=1"]).resume
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    found = begin(overrides=["epochs=1"])
    assert found.resume
    assert not found.overwrite


def test_with_torchrun_the_global_batch_is_that_of_the_start(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    config = stoker.experiment.load("c.yaml", overrides=["global_batch_size=null", "grad_accum_steps=2"])
    assert prepare._fix_global_batch(config).data.global_batch_size is None  # no torchrun
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert prepare._fix_global_batch(config).data.global_batch_size == 8 * 2 * 3
    with pytest.raises(ConfigError, match="both say how many batches"):
        prepare._fix_global_batch(stoker.experiment.load("c.yaml", overrides=["grad_accum_steps=2"]))

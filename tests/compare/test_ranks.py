"""Runs of several processes: rank 0 is observed, and all ranks end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stoker.compare.sides import Version, prepared
from stoker.errors import TrainError

PROGRAM = """
import os, torch
import torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 4)[rank::2]
for step in range(1000):
    optimizer.zero_grad()
    model(x[step % 32 :][:4]).square().mean().backward()
    optimizer.step()
"""
LAUNCHER = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "29611")


@pytest.mark.slow
def test_rank_0_is_observed_and_all_ranks_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = tmp_path / "train.py"
    path.write_text(PROGRAM)
    with prepared(Version(program=str(path), launcher=LAUNCHER)) as side:
        runs = [side.run([], steps=30, observe=True, time_limit=300) for _ in range(2)]
    assert len(runs[0].losses) == 30
    assert runs[0].losses == runs[1].losses
    assert runs[0].training.exact == runs[1].training.exact
    assert runs[0].parameters == 5
    assert [file.name for file in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.slow
def test_a_launcher_that_fails_says_so(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("raise SystemExit(3)")
    with prepared(Version(program=str(path), launcher=LAUNCHER)) as side, pytest.raises(TrainError, match="exit code 3"):
        side.run([], steps=30, time_limit=300)

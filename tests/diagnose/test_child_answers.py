"""A diagnosis always ends with an answer: at its time limit, after Ctrl-C, and for schedules that have an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from stoker.diagnose.session import REAL, Plan, Session

TRAIN = """
import threading, time, torch
from torch.utils.data import DataLoader, TensorDataset
{before}
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(400, 64)), batch_size=4)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.01, total_steps={epochs} * len(loader))
for epoch in range({epochs}):
    for number, (batch,) in enumerate(loader):
        {each}
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
"""
HANGS = "time.sleep(0.004); (epoch or number > 60) and [sum(range(10**9)) for _ in range(10)]"
"""From the middle of the measurement on, a call that holds the interpreter lock for a minute or more."""


def diagnose(
    folder: Path, *options: str, before: str = "", each: str = "time.sleep(0.004)", epochs: int = 3
) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(TRAIN.format(before=before, each=each, epochs=epochs))
    command = [sys.executable, "-m", "stoker", "diagnose", *options, "train.py"]
    environ = {**os.environ, "HOME": str(folder)}
    return subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


@pytest.mark.slow
def test_a_schedule_that_has_an_end_does_not_end_the_diagnosis(tmp_path: Path) -> None:
    out, err = diagnose(tmp_path).communicate(timeout=120)
    assert "VERDICT" in out
    assert "Tried to step" not in out + err


@pytest.mark.promise("P17")
@pytest.mark.slow
def test_a_program_that_knows_the_length_of_its_epochs_does_not_fail(tmp_path: Path) -> None:
    each = "time.sleep(0.004); history[number] += 1"
    out, err = diagnose(tmp_path, before="history = [0] * 100", each=each, epochs=1000).communicate(timeout=170)
    assert "VERDICT" in out
    assert "IndexError" in out + err, "the note of the first run"
    assert "only what was measured before is known" not in out + err


def test_a_schedule_stands_still_after_its_end_and_is_put_back() -> None:
    def plan(session: Session) -> Plan:
        yield REAL

    original = LRScheduler.step
    session = Session(plan, on_done=lambda: None)
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    scheduler = OneCycleLR(optimizer, max_lr=0.1, total_steps=2)
    session.make_endless()
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    session.remove()
    assert LRScheduler.step is original
    with pytest.raises(ValueError, match="Tried to step"):  # negative control
        scheduler.step()


@pytest.mark.slow
def test_at_the_time_limit_what_is_known_is_reported(tmp_path: Path) -> None:
    started = time.monotonic()
    out, err = diagnose(tmp_path, "--time-limit", "6", each=HANGS).communicate(timeout=120)
    assert time.monotonic() - started < 60
    assert "time limit of 6 s" in out + err
    assert "VERDICT" in out, "steps of the warm-up are known"


@pytest.mark.slow
def test_ctrl_c_reports_what_is_known(tmp_path: Path) -> None:
    process = diagnose(tmp_path)
    time.sleep(12)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert "VERDICT" in out
    assert "interrupted" in out + err or "NEXT" in out  # it may have been done already


@pytest.mark.slow
def test_ctrl_c_before_anything_is_measured_is_an_interruption(tmp_path: Path) -> None:
    process = diagnose(tmp_path, before="time.sleep(60)")
    time.sleep(6)
    os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode in (2, 130)
    assert "VERDICT" not in out

"""Ctrl-C at any moment of a search: it ends, keeps what was found, and leaves no lock and no claimed trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.tune import search
from stoker.tune.interrupts import Interrupts

CONFIG = """\
data: {store: w.stoker, view: {name: windows, length: 8, horizon: 1}, batch_size: 32}
split: {valid: 0.25}
model: {name: linear}
train: {epochs: 2, device: cpu}
"""
SCRIPT = """\
import os, random, signal, sys, threading
from stoker.tune import search
from stoker.tune.configured import ConfigObjective
from stoker.tune.storage import read_study

objective, space = ConfigObjective("c.yaml"), {"optimizer.lr": ("log", 1e-4, 1e-1)}
draw = random.Random(int(sys.argv[1]))
first = search(objective, space, budget=2, storage="s.journal", progress=False)
for number in range(int(sys.argv[2])):
    timer = threading.Timer(draw.uniform(0.0, 0.3), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        study = search(objective, space, budget="900s", storage="s.journal", progress=False)
        ended = study.stopped
    except KeyboardInterrupt:
        ended = "before"  # before its first line
    timer.join()
    states = {trial.state.name for trial in read_study("s.journal").trials}
    print(ended, "RUNNING" in states, flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    waves = np.sin(np.arange(64) / 5 + np.arange(8)[:, None]).astype("f4")
    stoker.Store.from_arrays(x=list(waves)).save(tmp_path / "w.stoker")
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def interrupted(folder: Path, *, seed: int, times: int) -> list[str]:
    """What each search said that got a signal at a random moment."""
    done = subprocess.run(
        [sys.executable, "script.py", str(seed), str(times)], cwd=folder, capture_output=True, text=True, timeout=1000, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_signal_at_any_moment_ends_the_search(folder: Path) -> None:
    times = 20
    found = interrupted(folder, seed=times, times=times)
    assert len(found) == times
    assert set(found) <= {"interrupted False", "before False"}
    assert "interrupted False" in found


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_signal_that_python_swallows_is_not_lost() -> None:
    class Swallows:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            for _ in range(1000):  # the handler runs between two instructions; Python prints what it raises here, and continues
                pass

    ran: list[int] = []

    def objective(params: dict[str, float]) -> float:
        ran.append(1)
        if len(ran) == 5:
            held = Swallows()
            del held
        return params["x"]

    study = search(objective, {"x": ("uniform", 0, 1)}, budget=50, progress=False)
    assert study.stopped == "interrupted"
    assert len(ran) == 5


def test_the_first_signal_waits_for_the_storage_and_the_second_does_not() -> None:
    reached: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    inner = {"__name__": "optuna.storages", "signal": signal, "time": time, "reached": reached}
    exec("def keep(times):\n for _ in range(times): signal.raise_signal(signal.SIGINT)\n reached.append('kept')", inner)
    keep: Any = inner["keep"]

    def keep_and_wait() -> None:
        keep(1)
        time.sleep(5)  # the signal comes again

    with Interrupts(), pytest.raises(KeyboardInterrupt):
        keep_and_wait()
    assert reached == ["kept"]
    with Interrupts(), pytest.raises(KeyboardInterrupt):
        keep(2)
    assert reached == ["kept"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_after_the_end_is_only_remembered() -> None:
    with Interrupts() as interrupts:
        interrupts.end()
        signal.raise_signal(signal.SIGINT)
    assert interrupts.asked
    with pytest.raises(KeyboardInterrupt):
        interrupts.check()


def test_a_handler_of_the_program_is_left_alone() -> None:
    seen: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGINT)
        assert seen == [signal.SIGINT]
        assert not interrupts.asked
    finally:
        signal.signal(signal.SIGINT, before)

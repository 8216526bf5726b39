"""kill -9 at random moments with two processes: no finished trial is lost, none is counted twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from optuna.trial import TrialState

from stoker.tune import Study
from stoker.tune.storage import MOST_ATTEMPTS

pytestmark = pytest.mark.slow

WORKER = """
import sys, time
from stoker.tune import search
from stoker.tune.storage import Claims
storage, budget, log = sys.argv[1:4]

def objective(params):
    time.sleep(0.003)
    return (params["x"] - 0.3) ** 2

finish = Claims.finish
def finish_and_say(self, trial, ending):
    finish(self, trial, ending)
    with open(log, "a") as file:
        file.write(f"{trial.number}:{ending.value!r}\\n")
Claims.finish = finish_and_say
search(objective, {"x": ("uniform", 0, 1), "y": ("log", 1e-3, 1.0)}, budget=int(budget), storage=storage, progress=False)
"""
BUDGET, KILLS = 600, 8


def start(storage: Path, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, str(storage), str(BUDGET), str(log)]
    return subprocess.Popen(command, stderr=subprocess.PIPE)


def size(log: Path) -> int:
    return log.stat().st_size if log.exists() else 0


@pytest.mark.promise("P28")
def test_two_processes_that_are_killed_lose_nothing(tmp_path: Path) -> None:
    storage, draw, logs = tmp_path / "study.journal", random.Random(1), [tmp_path / "a.log", tmp_path / "b.log"]
    workers = [start(storage, log) for log in logs]
    for _ in range(KILLS):
        which = draw.randrange(2)
        before, waited = size(logs[which]), time.monotonic() + 60
        while size(logs[which]) <= before and time.monotonic() < waited:
            time.sleep(0.005)  # it shall be at work
        time.sleep(draw.random() * 0.1)
        workers[which].send_signal(signal.SIGKILL)
        workers[which].communicate()
        workers[which] = start(storage, logs[which])
    for worker in [*workers, start(storage, logs[0])]:
        _, err = worker.communicate(timeout=280)
        assert worker.returncode == 0, err.decode()
    trials = Study.open(storage).trials
    # Each of three processes may begin a last trial: two workers, and the one that was started last.
    assert BUDGET <= len(trials) <= BUDGET + 2
    values = {trial.number: trial.value for trial in trials}
    assert len(values) == len(trials)
    # On a busy machine kills may come so soon after each other that all of them meet the same trial.
    failed = [trial.user_attrs["error"] for trial in trials if trial.state != TrialState.COMPLETE]
    assert set(failed) <= {f"its process ended {MOST_ATTEMPTS} times while it ran"}
    assert len(failed) <= 2
    reported = [line.split(":") for log in logs for line in log.read_text().splitlines()]
    assert len({number for number, _ in reported}) == len(reported) >= BUDGET - 2 - KILLS
    # What was once finished has stayed as it was.
    assert all(values[int(number)] == float(value) for number, value in reported)

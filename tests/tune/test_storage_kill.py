"""kill -9 at random moments with two processes: no finished trial is lost, none is counted twice."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.tune.servers import postgres_server

from stoker.tune import Study
from stoker.tune.storage import MOST_ATTEMPTS

pytestmark = pytest.mark.slow

WORKER = """
import sys, time
from stoker.tune import search
storage, budget, log = sys.argv[1:4]

def objective(params):
    time.sleep(0.003)
    return (params["x"] - 0.3) ** 2

def say(line):
    with open(log, "a") as file:
        file.write(line + "\\n")

module = sys.modules["stoker.tune.search_loop"]
module.LINE_SECONDS = 0.0
show = module._Search._show
def show_all(self):
    say(" ".join(f"{n}:{t.value!r}" for n, t in self.trials.items() if t.state == "complete"))
module._Search._show = show_all
search(objective, {"x": ("uniform", 0, 1), "y": ("log", 1e-3, 1.0)}, budget=int(budget), storage=storage, progress=False)
"""
BUDGET = 1000


def start(storage: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", WORKER, storage, str(BUDGET), str(log)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_and_resume(storage: str, folder: Path, *, kills: int, seed: int) -> None:
    """Two workers on one study, each killed and started again some times; then one to the end."""
    draw, logs = random.Random(seed), [folder / "a.log", folder / "b.log"]
    workers = [start(storage, log) for log in logs]
    done = 0
    deadline = time.monotonic() + 240
    while done < kills and time.monotonic() < deadline:
        which = draw.randrange(2)
        before = logs[which].stat().st_size if logs[which].exists() else 0
        waited = time.monotonic() + 60
        while (logs[which].stat().st_size if logs[which].exists() else 0) <= before and time.monotonic() < waited:
            time.sleep(0.005)  # it shall be at work
        time.sleep(draw.random() * 0.1)
        workers[which].send_signal(signal.SIGKILL)
        workers[which].wait()
        workers[which] = start(storage, logs[which])
        done += 1
    for one in workers:
        one.wait(timeout=280)
    last = start(storage, logs[0])
    assert last.wait(timeout=280) == 0
    assert done == kills
    check(storage, logs)


def check(storage: str, logs: list[Path]) -> None:
    study = Study.open(storage)
    assert [one.number for one in study.trials] == list(range(BUDGET))
    # On a busy machine kills may come so soon after each other that all of them meet the same trials.
    killed = [one for one in study.trials if one.error == f"its process ended {MOST_ATTEMPTS} times while it ran"]
    assert all(one.state == ("failed" if one in killed else "complete") for one in study.trials)
    assert len(killed) <= BUDGET // 100
    values = {one.number: one.value for one in study.trials}
    reported = 0
    for log in logs:
        for line in log.read_text().splitlines():
            for part in line.split():
                number, _, value = part.partition(":")
                if value:
                    reported += 1
                    # What was once reported as finished has stayed as it was.
                    assert values[int(number)] == float(value)
    assert reported >= BUDGET


def test_sqlite(tmp_path: Path) -> None:
    kill_and_resume(str(tmp_path / "study.sqlite"), tmp_path, kills=6, seed=1)


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[str]:
    with postgres_server(tmp_path) as url:
        yield url


@pytest.mark.timeout(900)
def test_postgresql(postgres: str, tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    kill_and_resume(postgres, logs, kills=4, seed=2)

"""Ctrl-C at any moment of a search: it ends, keeps what was found, and leaves no lock and no claimed trial."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

import stoker
from stoker.tune import Study, search, search_loop
from stoker.tune.interrupts import Interrupts
from stoker.tune.storage import open_study

pytestmark = pytest.mark.promise("P28")

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
SPACE = {"x": ("uniform", 0, 1)}


@pytest.mark.slow
def test_a_signal_at_any_moment_ends_the_search(tmp_path: Path) -> None:
    waves = np.sin(np.arange(64) / 5 + np.arange(8)[:, None]).astype("f4")
    stoker.Store.from_arrays(x=list(waves)).save(tmp_path / "w.stoker")
    (tmp_path / "c.yaml").write_text(CONFIG)
    (tmp_path / "script.py").write_text(SCRIPT)
    times = 20
    done = subprocess.run(
        [sys.executable, "script.py", str(times), str(times)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == times
    assert set(lines) <= {"interrupted False", "before False"}
    assert "interrupted False" in lines


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

    study = search(objective, SPACE, budget=50, progress=False)
    assert study.stopped == "interrupted"
    assert len(ran) == 5


class Interrupted(dict[str, Any]):
    """A record of a journal with which a signal comes."""

    def __getitem__(self, name: str) -> Any:
        if name == "op_code":
            signal.raise_signal(signal.SIGINT)
        return super().__getitem__(name)


@pytest.mark.parametrize("is_read_again", [True, False])
def test_a_signal_while_the_journal_is_read_skips_no_record(
    is_read_again: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna counts a record, then applies it: a signal in between loses it in memory. The second case is the negative control."""
    honest, path, armed = JournalFileBackend.read_logs, tmp_path / "s.journal", [False]
    other = open_study(path, name="search")  # in another process
    if not is_read_again:
        monkeypatch.setattr(search_loop, "StudyJournal", type(None))

    def read_logs(self: JournalFileBackend, start: int) -> Iterator[dict[str, Any]]:
        for record in honest(self, start):
            comes, armed[0] = armed[0], False
            yield Interrupted(record) if comes else record

    def objective(params: dict[str, float], trial: Any) -> float:
        trial.report(0.5, 1)
        if trial.number == 2:
            other.tell(other.ask(), 1.0)
            armed[0] = True
            trial.report(0.5, 2)
        return params["x"]

    monkeypatch.setattr(JournalFileBackend, "read_logs", read_logs)
    study = search(objective, SPACE, budget=9, storage=path, progress=False)
    assert study.stopped == "interrupted"
    states = [trial.state for trial in Study.open(path).optuna_study.trials]
    assert ([trial.state for trial in study.optuna_study.trials] == states) is is_read_again
    if is_read_again:
        assert TrialState.RUNNING not in states
        assert len(search(lambda params: params["x"], SPACE, budget=9, storage=path, progress=False).trials) == 9


def test_the_first_signal_waits_and_the_second_does_not() -> None:
    before, reached = signal.getsignal(signal.SIGINT), list[str]()
    with Interrupts() as interrupts:
        with interrupts.held():
            signal.raise_signal(signal.SIGINT)
            reached.append("kept")
        with pytest.raises(KeyboardInterrupt):
            interrupts.check()
        with pytest.raises(KeyboardInterrupt), interrupts.held():
            signal.raise_signal(signal.SIGINT)
    assert reached == ["kept"]
    assert signal.getsignal(signal.SIGINT) is before


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

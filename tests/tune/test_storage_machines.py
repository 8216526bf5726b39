"""Several machines on one study in PostgreSQL: populations in each worker, kills, clocks that differ; and no password is shown."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calling import call, stoker_command
from tests.cli.training_folder import make_folder
from tests.tune.servers import postgres_server

from stoker.errors import OptionError
from stoker.tune import Study, storage
from stoker.tune.storage import SqlStorage
from stoker.tune.trial import StudyTrial

pytestmark = pytest.mark.slow

PASSWORD = "s3cr3t-0f-tests"
WORKER = """
import os, sys, torch
from torch import nn
from stoker.tune import PopulationObjective, search

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
batches = [(x, x.sum(1, keepdim=True)) for x in torch.randn(6, 16, 4, generator=generator)]
objective = PopulationObjective(
    lambda config: nn.Linear(4, 1), lambda model, batch: (model(batch[0]) - batch[1]).square().mean(), batches, batches, rungs=(2, 8)
)
start = objective.start
def told(configs, seeds):
    with open(sys.argv[3], "a") as log:
        log.write(f"{len(configs)}\\n")
    return start(configs, seeds)
objective.start = told
study = search(objective, {"lr": ("log", 1e-4, 1.0)}, budget=int(sys.argv[2]), storage=os.environ["STUDY"], progress=True)
print(study)
print(repr(study))
"""
BUDGET = 240


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with postgres_server(tmp_path_factory.mktemp("server"), password=PASSWORD) as url:
        yield url


def start(url: str, folder: Path, name: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path if entry)
    with (folder / f"{name}.out").open("ab") as out:
        command = [sys.executable, "-c", WORKER, "-", str(BUDGET), str(folder / f"{name}.groups")]
        env = {**os.environ, "STUDY": url, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, env=env, cwd=folder, stdout=out, stderr=out)


@pytest.mark.timeout(600)
def test_workers_with_populations_share_a_study_and_are_killed(server: str, tmp_path: Path) -> None:
    """Three workers, each with groups of trials, two of them killed: no trial is lost, none is counted twice."""
    draw, names = random.Random(5), ["a", "b", "c"]
    workers = {name: start(server, tmp_path, name) for name in names}
    kills, deadline = 0, time.monotonic() + 200
    while kills < 2 and time.monotonic() < deadline:
        name = names[kills % 2]
        groups = tmp_path / f"{name}.groups"
        before = groups.stat().st_size if groups.exists() else 0
        waited = time.monotonic() + 60
        while (groups.stat().st_size if groups.exists() else 0) <= before and workers[name].poll() is None:
            assert time.monotonic() < waited, (tmp_path / f"{name}.out").read_text()[-2000:]
            time.sleep(0.005)
        if workers[name].poll() is not None:
            break  # all is done
        time.sleep(draw.random() * 0.1)
        workers[name].send_signal(signal.SIGKILL)
        workers[name].wait()
        workers[name] = start(server, tmp_path, name)
        kills += 1
    for name, one in workers.items():
        assert one.wait(timeout=280) == 0, (tmp_path / f"{name}.out").read_text()[-2000:]
    assert kills == 2
    last = start(server, tmp_path, "last")
    assert last.wait(timeout=280) == 0
    study = Study.open(server)
    assert [one.number for one in study.trials] == list(range(len(study.trials)))
    assert len(study.trials) >= BUDGET
    assert {one.state for one in study.trials} <= {"complete", "pruned"}
    sizes = [int(line) for name in names for line in (tmp_path / f"{name}.groups").read_text().splitlines()]
    assert max(sizes) > 1  # a worker trains several trials at once
    shown = "".join(path.read_text() for path in tmp_path.glob("*.out")) + str(study) + repr(study)
    assert PASSWORD not in shown
    assert "tester@" in repr(study)


def as_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"host": name, "pid": 1, "start": "?", "id": name}
    monkeypatch.setattr(storage, "this_process", lambda: given)


def claim(one: SqlStorage) -> list[int]:
    def propose(first: int, count: int) -> list[StudyTrial]:
        return [StudyTrial(number=first + k, params={}, state="running") for k in range(count)]

    claimed, _ = one.exchange([], propose, 1)
    return [trial.number for trial in claimed]


@pytest.mark.parametrize("has_server_time", [True, False], ids=["server_time", "negative_control"])
def test_a_machine_whose_clock_is_ahead_takes_no_trial_from_another(
    has_server_time: bool, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = f"clocks-{has_server_time}"
    now = storage._utc_now
    if not has_server_time:
        monkeypatch.setattr(SqlStorage, "_time", lambda self, db: storage._utc_now())
    as_machine("first", monkeypatch)
    first = SqlStorage(server, name=study, direction="minimize")
    assert claim(first) == [0]
    as_machine("second", monkeypatch)
    monkeypatch.setattr(storage, "_utc_now", lambda: now() + timedelta(hours=1))
    second = SqlStorage(server, name=study, direction="minimize")
    assert claim(second) == ([1] if has_server_time else [0])
    first.close()
    second.close()


def test_a_machine_that_is_silent_loses_its_trial(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    as_machine("first", monkeypatch)
    first = SqlStorage(server, name="silent", direction="minimize")
    assert claim(first) == [0]
    as_machine("second", monkeypatch)
    monkeypatch.setattr(storage, "LOST_SECONDS", -1.0)
    second = SqlStorage(server, name="silent", direction="minimize")
    assert claim(second) == [0]
    # What the first one reports later does not count: the trial is the second one's.
    late, _ = first.exchange([StudyTrial(number=0, params={}, state="complete", value=1.0)], lambda first, count: [], 0)
    kept, _ = second.exchange([StudyTrial(number=0, params={}, state="complete", value=2.0)], lambda first, count: [], 0)
    assert (late, kept) == ([], [])
    assert [one.value for one in Study.open(server, name="silent").trials] == [2.0]
    first.close()
    second.close()


@pytest.mark.parametrize("change", [("tester:", "nobody:"), ("/postgres?", "/missing?"), ("host=", "host=/nowhere")])
def test_a_password_is_not_part_of_errors(change: tuple[str, str], server: str) -> None:
    wrong: Any = server.replace(*change)
    for open_it in (lambda: SqlStorage(wrong, name="s", direction=None), lambda: Study.open(wrong)):
        with pytest.raises(OptionError) as error:
            open_it()
        assert PASSWORD not in str(error.value)
        assert error.value.__cause__ is None
    with pytest.raises(OptionError) as error:
        Study.open(server, name="no such study")
    assert PASSWORD not in str(error.value)


@pytest.mark.timeout(300)
def test_the_command_line_shows_and_keeps_no_password(server: str, tmp_path: Path) -> None:
    make_folder(tmp_path)
    (tmp_path / "space.yaml").write_text("optimizer.lr: [log, 1e-5, 1e-1]\n")
    arguments = ["tune", "search", "c.yaml", "--space", "space.yaml", "--budget", "2", "--storage", server, "--name", "line"]
    arguments += ["--set", "epochs=1", "--json"]
    for words in (arguments, [*arguments[:-1]], [*arguments, "--storage", server.replace("tester:", "nobody:")]):
        done = call(stoker_command(*words), tmp_path, OMP_NUM_THREADS="1")
        assert PASSWORD not in done.out + done.err, done.err
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in kept if PASSWORD.encode() in path.read_bytes()]

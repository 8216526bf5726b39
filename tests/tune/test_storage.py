"""A study in a journal of Optuna, shared by processes, some of which are gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.trial import TrialState

from stoker.errors import OptionError
from stoker.tune import Study, search
from stoker.tune.space import as_space
from stoker.tune.storage import MOST_ATTEMPTS, Claims, Ending, has_ended, open_study, this_process
from stoker.tune.trial import RECORD, record_of, seed_of

SPACE = as_space({"x": ("uniform", 0, 1), "kind": ["a", None]})
DIE = """
import os, sys
from stoker.tune import search
search(lambda params: os._exit(9), {"x": ("uniform", 0, 1)}, budget=5, storage=sys.argv[1], progress=False)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "study.journal"


def opened(path: Path) -> tuple[optuna.Study, Claims]:
    study = open_study(path, name="search")
    return study, Claims(study, seed=7)


def plain_optuna(path: Path) -> optuna.Study:
    return optuna.load_study(study_name="search", storage=JournalStorage(JournalFileBackend(str(path))))


def parabola(params: dict[str, float]) -> float:
    return params["x"] ** 2


def test_plain_optuna_reads_and_continues_the_study(path: Path) -> None:
    study = search(parabola, {"x": ("uniform", -1, 1)}, budget=15, storage=path, progress=False)
    loaded = plain_optuna(path)
    assert [trial.value for trial in loaded.trials] == [trial.value for trial in study.trials]
    assert loaded.best_params == study.best.params
    assert seed_of(loaded.trials[0]) == 0
    loaded.optimize(lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=2)
    more = search(parabola, {"x": ("uniform", -1, 1)}, budget=20, storage=path, progress=False)
    assert len(more.trials) == 20
    assert Study.open(path).best == more.best


def test_a_study_of_optuna_can_be_read_and_a_database_is_a_url(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    made = optuna.create_study(storage=url, study_name="mine", direction="maximize")
    made.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=5)
    study = Study.open(url)
    assert (study.name, len(study.trials), study.best.value) == ("mine", 5, made.best_value)
    with pytest.raises(OptionError, match="has no study 'other'; it holds mine"):
        Study.open(url, name="other")
    with pytest.raises(OptionError, match="does not exist"):
        Study.open(tmp_path / "none.journal")
    more = search(lambda params: params["x"], {"x": ("uniform", 0, 1)}, storage=url, name="mine", budget=6, progress=False)
    assert len(more.trials) == 6
    with pytest.raises(OptionError, match=r"own.db is not a journal of Optuna. Choose another file, or give a database as a URL"):
        Study.open(tmp_path / "own.db")


def test_a_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no newline at the end")
    with pytest.raises(OptionError, match="is not a journal of Optuna"):
        search(parabola, {"x": ("uniform", 0, 1)}, budget=1, storage=tmp_path / "notes.txt")
    assert (tmp_path / "notes.txt").read_text() == "no newline at the end"


@pytest.mark.promise("P28")
def test_a_line_that_a_killed_process_began_is_removed(path: Path) -> None:
    """At each byte of a line, a study can be continued, and has all that was finished before."""
    search(parabola, {"x": ("uniform", 0, 1)}, budget=2, storage=path, progress=False)
    whole = path.read_bytes()
    start = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        study, claims = opened(path)
        claims.finish(claims.take(SPACE), Ending(TrialState.COMPLETE, 3.0))
        assert [trial.value for trial in plain_optuna(path).trials][0::2] == [study.trials[0].value, 3.0]
    # The negative control: with the lock of Optuna the next record is part of the broken line, and lost.
    path.write_bytes(whole[:-5])
    with pytest.raises(AttributeError):
        plain_optuna(path).ask()


def test_trials_that_are_given_back_wait_for_the_next_process(path: Path) -> None:
    first_study, first = opened(path)
    a, b = first.take(SPACE), first.take(SPACE)
    first.finish(a, Ending(TrialState.COMPLETE, 1.0))
    first.give_back(first_study)
    study, second = opened(path)
    again = second.take(SPACE)
    assert (again.number, again.params, seed_of(again)) == (2, b.params, 7)
    second.finish(again, Ending(TrialState.FAIL, error="boom"))
    assert [trial.number for trial in Study(optuna_study=study).trials] == [0, 2]
    assert Study(optuna_study=study).first_error == "boom"


def lose(study: optuna.Study, trial: optuna.Trial) -> None:
    """Let a trial be that of a process that is gone."""
    trial.set_user_attr(RECORD, {**record_of(trial), "process": {**this_process(), "start": "0"}})


@pytest.mark.promise("P28")
def test_a_trial_whose_process_is_gone_is_run_again_by_one_process(path: Path) -> None:
    study, first = opened(path)
    trial = first.take(SPACE)
    lose(study, trial)
    others = [opened(path)[1] for _ in range(2)]
    for claims in others:
        claims.retry_lost()
    again, new = others[0].take(SPACE), others[1].take(SPACE)
    assert again.params == trial.params
    assert new.params != trial.params
    assert [trial.state for trial in study.trials] == [TrialState.FAIL, TrialState.RUNNING, TrialState.RUNNING]


@pytest.mark.promise("P28", control=True)
def test_negative_control_trials_of_a_live_process_are_left_alone(path: Path) -> None:
    study, first = opened(path)
    first.take(SPACE)
    _, second = opened(path)
    second.retry_lost()
    second.take(SPACE)
    assert [trial.state for trial in study.trials] == [TrialState.RUNNING] * 2


def test_a_trial_that_ends_its_process_again_and_again_fails(path: Path) -> None:
    for _ in range(MOST_ATTEMPTS):
        assert subprocess.run([sys.executable, "-c", DIE, str(path)], check=False).returncode == 9
    study = search(parabola, {"x": ("uniform", 0, 1)}, budget=3, storage=path, progress=False)
    assert study.counts() == {"complete": 2, "pruned": 0, "failed": 1}
    assert study.first_error == f"its process ended {MOST_ATTEMPTS} times while it ran"
    [failed] = [trial for trial in study.trials if trial.state == TrialState.FAIL]
    assert len({trial.params["x"] for trial in plain_optuna(path).trials if trial.state == TrialState.FAIL}) == 1
    assert failed.params


def test_whether_a_process_has_ended_is_known_on_its_machine_only() -> None:
    mine = this_process()
    assert not has_ended(mine)
    assert has_ended({**mine, "start": "1"})
    assert has_ended({**mine, "pid": 2**22 + 1})
    assert not has_ended({**mine, "host": "elsewhere", "start": "1"})
    assert not has_ended({})


@pytest.mark.promise("P21")
def test_passwords_are_not_part_of_messages() -> None:
    hostless = "sqlite://me@host/none?password=secret"
    for url in ("postgresql://me:secret@127.0.0.1:1/none", "mysql+none://me:secret@host/none", hostless):
        with pytest.raises(OptionError, match="cannot be opened") as error:
            open_study(url, name="s")
        assert "secret" not in str(error.value)
        assert error.value.__cause__ is None
    with pytest.raises(sqlalchemy.exc.ArgumentError, match="secret"):  # the negative control
        optuna.create_study(storage=hostless)

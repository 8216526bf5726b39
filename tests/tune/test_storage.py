from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import optuna
import pytest
from sqlalchemy import event

from stoker.errors import OptionError
from stoker.tune import Study, search, storage
from stoker.tune.space import as_space
from stoker.tune.storage import SqlStorage, has_ended, this_process
from stoker.tune.trial import StudyTrial

SPACE = as_space({"x": ("uniform", 0, 1), "kind": ["a", None]}).distributions


def proposals(first: int, count: int) -> list[StudyTrial]:
    return [
        StudyTrial(number=i, params={"x": i / 100, "kind": "a"}, state="running", seed=7, distributions=SPACE)
        for i in range(first, first + count)
    ]


def ended(trial: StudyTrial, value: float = 1.0) -> StudyTrial:
    return replace(trial, state="complete", value=value, seconds=0.5, steps={1: 2.0, 4: float("inf")})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "study.sqlite"


def opened(path: Path) -> SqlStorage:
    return SqlStorage(path, name="search", direction="minimize")


def test_two_processes_share_numbers_and_see_what_the_other_has_finished(path: Path) -> None:
    one, two = opened(path), opened(path)
    [a, b], _ = one.exchange([], proposals, 2)
    [c], _ = two.exchange([], proposals, 1)
    assert (a.number, b.number, c.number) == (0, 1, 2)
    _, seen = one.exchange([ended(a)], proposals, 0)
    assert seen == [ended(a)]
    [d], seen = two.exchange([replace(c, state="failed", error="boom")], proposals, 1)
    assert d.number == 3
    assert {trial.number: trial.state for trial in seen} == {0: "complete", 2: "failed"}
    assert next(trial for trial in seen if trial.number == 0) == ended(a)
    one.close()  # gives b back
    [again], _ = two.exchange([], proposals, 1)
    assert (again.number, again.params, again.seed) == (1, b.params, 7)
    two.close()


def test_a_trial_whose_commit_fails_is_not_shown_until_it_is_saved(path: Path) -> None:
    one = opened(path)
    [a], _ = one.exchange([], proposals, 1)

    def fail(first: int, count: int) -> list[StudyTrial]:
        raise RuntimeError("no proposal")

    with pytest.raises(RuntimeError, match="no proposal"):
        one.exchange([ended(a)], fail, 1)
    assert [trial.state for trial in Study.open(path).trials] == ["running"]
    _, seen = one.exchange([ended(a)], proposals, 0)
    assert seen == [ended(a)]
    assert one.exchange([], proposals, 0)[1] == []  # once
    one.close()


def test_ctrl_c_while_the_lock_is_taken_leaves_no_lock(path: Path) -> None:
    one = opened(path)
    [a], _ = one.exchange([], proposals, 1)

    def interrupt(connection: Any, cursor: Any, statement: str, *others: Any) -> None:
        if "FROM studies" in statement:
            raise KeyboardInterrupt

    event.listen(one._engine, "before_cursor_execute", interrupt)
    try:
        one.exchange([ended(a)], proposals, 1)
    except KeyboardInterrupt:
        event.remove(one._engine, "before_cursor_execute", interrupt)
        with closing(sqlite3.connect(path, timeout=0.1)) as other:  # while the error and its frames are alive
            other.execute("BEGIN IMMEDIATE")
    one.close()
    assert [trial.state for trial in Study.open(path).trials] == ["waiting"]


def test_plain_optuna_reads_and_continues_the_study(path: Path) -> None:
    study = search(lambda params: params["x"] ** 2, {"x": ("uniform", -1, 1)}, budget=15, storage=path, progress=False)
    loaded = optuna.load_study(study_name="search", storage=f"sqlite:///{path}")
    assert [one.value for one in loaded.trials] == [one.value for one in study.trials]
    assert [one.params for one in loaded.trials] == [one.params for one in study.trials]
    assert loaded.best_params == study.best.params
    assert loaded.trials[0].user_attrs["stoker"]["seed"] == 0
    loaded.optimize(lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=2)
    more = search(lambda params: params["x"] ** 2, {"x": ("uniform", -1, 1)}, budget=20, storage=path, progress=False)
    assert len(more.trials) == 20
    assert Study.open(path).best == more.best


def test_a_study_of_optuna_can_be_read(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    made = optuna.create_study(storage=url, study_name="mine", direction="maximize")
    made.optimize(lambda trial: trial.suggest_float("x", 0, 1), n_trials=5)
    study = Study.open(url)
    assert (study.name, study.direction, len(study.trials)) == ("mine", "maximize", 5)
    assert study.best.value == made.best_value
    with pytest.raises(OptionError, match="has no study 'other'; it holds mine"):
        Study.open(url, name="other")
    with pytest.raises(OptionError, match="does not exist"):
        Study.open(tmp_path / "none.db")
    with pytest.raises(OptionError, match="is to maximize, but direction is 'minimize'"):
        search(lambda params: 0.0, {"x": ("uniform", 0, 1)}, direction="minimize", storage=url, name="mine", budget=1)


def rewrite(path: Path, change: Any) -> None:
    """Change the record of every running trial."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute(
            "SELECT a.trial_id, a.value_json FROM trial_user_attributes a JOIN trials t ON t.trial_id = a.trial_id "
            "WHERE t.state = 'RUNNING' AND a.key = 'stoker'"
        ).fetchall()
        for key, text in rows:
            db.execute(
                "UPDATE trial_user_attributes SET value_json = ? WHERE trial_id = ?", (json.dumps(change(json.loads(text))), key)
            )
        db.commit()


def of_a_dead_process(record: Mapping[str, Any]) -> dict[str, Any]:
    return {**record, "worker": {**record["worker"], "start": "0"}}


def test_trials_of_a_process_that_has_ended_are_run_again_and_count_once(path: Path) -> None:
    one = opened(path)
    [a, b], _ = one.exchange([], proposals, 2)
    rewrite(path, of_a_dead_process)
    two = opened(path)
    claimed, _ = two.exchange([], proposals, 3)
    assert [trial.number for trial in claimed] == [0, 1, 2]
    # The first process was only slow: what it finishes now is no longer its own.
    _, seen = one.exchange([ended(a, 5.0)], proposals, 0)
    assert seen == []
    _, seen = two.exchange([ended(claimed[0], 6.0)], proposals, 0)
    assert [trial.value for trial in seen] == [6.0]
    assert b.number == 1


def test_negative_control_trials_of_a_live_process_are_left_alone(path: Path) -> None:
    one = opened(path)
    one.exchange([], proposals, 2)
    two = opened(path)
    claimed, _ = two.exchange([], proposals, 1)
    assert [trial.number for trial in claimed] == [2]


def test_a_trial_that_ends_its_process_again_and_again_fails(path: Path) -> None:
    for attempt in range(1, storage.MOST_ATTEMPTS + 1):
        process = opened(path)
        [claimed], seen = process.exchange([], proposals, 1)
        assert claimed.number == 0, attempt
        rewrite(path, of_a_dead_process)
    [claimed], seen = opened(path).exchange([], proposals, 1)
    assert claimed.number == 1
    assert [(one.state, one.error) for one in seen] == [("failed", "its process ended 3 times while it ran")]


def test_a_process_of_another_machine_has_ended_when_it_is_silent() -> None:
    mine = this_process()
    assert not has_ended(mine, None)
    assert has_ended({**mine, "start": "1"}, None)
    assert has_ended({**mine, "pid": 2**22 + 1}, None)
    other = {**mine, "host": "elsewhere"}
    assert not has_ended(other, 5.0)
    assert not has_ended(other, None)
    assert has_ended(other, storage.LOST_SECONDS + 1)


def test_passwords_are_not_part_of_messages() -> None:
    with pytest.raises(OptionError) as error:
        SqlStorage("postgresql://me:secret@127.0.0.1:1/none", name="s", direction=None)
    assert "secret" not in str(error.value)

"""What a run begins with: when it is a restart by `torchrun`, and which global batch it has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.training_folder import make_folder

import stoker
from stoker.experiment import prepare
from stoker.train.run import Computer, Record, RunSession, is_restart, write_record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_folder(tmp_path)


def session(**values: Any) -> RunSession:
    given: Any = {"started": "2026-11-17T12:00:00.000Z", "from_step": 0, "process": 1, "command": [], "folder": "", "config": {}}
    machine = {"host": "", "system": "", "cpu": "", "cores": 1, "memory_bytes": 1, "gpus": [], "driver": None}
    return RunSession(**given, stores={}, versions={}, machine=msgspec.convert(machine, Computer), git=None, **values)


@pytest.mark.promise("P33")
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


@pytest.mark.promise("P33")
def test_a_restart_resumes_and_does_not_overwrite(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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

"""The watch of a trainer: slowdowns of updates are in its result and in the folder of its run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.train.training import grouped

import stoker
from stoker.train.run import read_slowdowns
from stoker.watch import loop as watches

BATCH = (torch.ones(2, 3), torch.zeros(2, 1))


class Steps:
    """A clock that advances by a step each time the watch reads it."""

    def __init__(self, rng: np.random.Generator, slow_from: int) -> None:
        self._rng, self._slow_from = rng, slow_from
        self._reads = self._now = 0

    def __call__(self) -> int:
        self._reads += 1
        self._now += int(1e6 * (1.3 if self._reads >= self._slow_from else 1.0) * (1 + 0.02 * self._rng.standard_normal()))
        return self._now


def fit(batches: Any, *, epochs: int = 1, overwrite: bool = False, **options: Any) -> stoker.train.Result:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    options = grouped({"progress": False, **options})
    return stoker.Trainer(model, torch.nn.MSELoss(), optimizer, **options).fit(batches, epochs=epochs, overwrite=overwrite)


@pytest.fixture
def slow_from_720(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> Iterator[None]:
    monkeypatch.setattr(watches, "now_ns", Steps(rng, 720))
    return


@pytest.mark.promise("P22")
@pytest.mark.usefixtures("slow_from_720")
def test_a_slowdown_is_in_the_result_the_folder_and_the_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = fit([BATCH] * 830, folder=tmp_path / "run", progress=True)
    (slowdown,) = result.slowdowns
    assert 700 < slowdown.step <= 820
    assert slowdown.slower == pytest.approx(0.3, abs=0.08)
    assert read_slowdowns(tmp_path / "run") == [slowdown]
    assert str(slowdown) in capsys.readouterr().out


@pytest.mark.promise("P22", control=True)
@pytest.mark.usefixtures("slow_from_720")
def test_negative_control_without_the_watch_nothing_is_found(tmp_path: Path) -> None:
    assert fit([BATCH] * 830, folder=tmp_path / "run", watch=False).slowdowns == ()
    assert not (tmp_path / "run" / "slowdowns.jsonl").exists()


@pytest.mark.usefixtures("slow_from_720")
def test_epochs_continue_and_a_replaced_run_takes_its_slowdowns_along(tmp_path: Path) -> None:
    result = fit([BATCH] * 415, epochs=2, folder=tmp_path / "run")
    assert result.step == 830
    assert len(result.slowdowns) == 1
    assert fit([BATCH] * 4, folder=tmp_path / "run", overwrite=True).slowdowns == ()
    assert read_slowdowns(tmp_path / "run") == []


@pytest.mark.usefixtures("slow_from_720")
def test_a_file_that_cannot_be_written_does_not_end_the_run(tmp_path: Path) -> None:
    class InItsPlace:
        def on_open(self) -> None:
            (tmp_path / "run" / "slowdowns.jsonl").mkdir(parents=True)

    assert len(fit([BATCH] * 830, folder=tmp_path / "run", callbacks=[InItsPlace()]).slowdowns) == 1

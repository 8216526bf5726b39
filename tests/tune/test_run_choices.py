from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker._clock import RunQueueDelay
from stoker.errors import OptionError
from stoker.train.autotune import Chooser, Timed, TimedRun, Trial
from stoker.tune import run_choices
from stoker.tune.run_choices import choose_run

CONFIG = """\
data: {store: w.stoker, view: {name: windows, length: 8, horizon: 1}, batch_size: 32}
model: {name: linear}
train: {epochs: 2, device: cpu}
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> stoker.experiment.Config:
    waves = np.sin(np.arange(64) / 5 + np.arange(8)[:, None]).astype("f4")
    stoker.Store.from_arrays(x=list(waves)).save(tmp_path / "w.stoker")
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return stoker.experiment.load("c.yaml")


class Quick(Chooser):
    """Sees the candidate twice as fast, so that the checks after the first look run on a busy machine, too."""

    def __init__(self, run: TimedRun) -> None:
        def timed(setup: Any, num_steps: int, **options: Any) -> Timed:
            seconds = 0.001 if setup == "candidate" else 0.002
            return run(setup, num_steps, **options)._replace(seconds=seconds)

        super().__init__(run=timed)


def test_what_is_faster_becomes_a_new_config(
    config: stoker.experiment.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def race(self: Chooser, name: str, *arguments: object, **options: object) -> Trial:
        trial = Trial(name=name, chosen=name == "loading.threads=1", reason="as measured")
        self.trials.append(trial)
        return trial

    monkeypatch.setattr(Chooser, "_race", race)
    monkeypatch.setattr(run_choices, "Chooser", Quick)
    lines: list[str] = []
    found = choose_run(config, report=lines.append)
    assert found.changed == {"data.loading.threads": 1}
    assert found.config.data.loading.threads == 1
    assert {line.split()[0] for line in lines} >= {
        "loading.residency=host",
        "loading.residency=stream",
        "loading.threads=1",
        "loading.prefetch=2",
    }
    # Feeds of all candidates give the same bits: the checks before the race have passed.
    assert not any("differ" in line for line in lines)
    found.save(tmp_path / "new.yaml")
    assert stoker.experiment.load(tmp_path / "new.yaml").data.loading.threads == 1
    with pytest.raises(OptionError, match="already exists"):
        found.save(tmp_path / "new.yaml")
    assert (tmp_path / "c.yaml").read_text() == CONFIG


def test_negative_control_a_feed_with_other_batches_is_refused(
    config: stoker.experiment.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = run_choices.open_data
    opened = []

    def other(config: stoker.experiment.Config, device: str) -> object:
        opened.append(config)
        shuffled = run_choices._with(config, {"train.seed": 99}) if config.data.loading.threads == 1 else config
        return honest(shuffled, device)

    monkeypatch.setattr(run_choices, "open_data", other)
    monkeypatch.setattr(run_choices, "Chooser", Quick)
    trial = run_choices._compare_feeds(config, "data.loading.threads", 1)
    assert not trial.chosen
    assert "weights differ in some bits" in trial.reason


def test_times_are_per_step(config: stoker.experiment.Config) -> None:
    assert Timed(0.5, [0.0]).seconds == 0.5


def test_a_feed_that_is_faster_is_taken(config: stoker.experiment.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is faked but the cause: with the threads that the config has now, each batch takes longer."""
    honest = run_choices.open_data

    class Slow:
        def __init__(self, feed: Any) -> None:
            self._feed = feed

        def __getattr__(self, name: str) -> Any:
            return getattr(self._feed, name)

        def __iter__(self) -> Iterator[Any]:
            for batch in self._feed:
                time.sleep(0.02)
                yield batch

    def open_data(config: stoker.experiment.Config, device: str) -> Any:
        found = honest(config, device)
        return found if config.data.loading.threads == 1 else replace(found, train=Slow(found.train))

    monkeypatch.setattr(run_choices, "open_data", open_data)
    monkeypatch.setattr(RunQueueDelay, "end", lambda self: (0, 1))  # on a busy machine nothing would be measured
    now = run_choices._with(config, {"data.loading.threads": 2})
    trial = run_choices._compare_feeds(now, "data.loading.threads", 1)
    assert trial.chosen, trial.reason
    assert not run_choices._compare_feeds(run_choices._with(config, {"data.loading.threads": 1}), "data.loading.threads", 2).chosen

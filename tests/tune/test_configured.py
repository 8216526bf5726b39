from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import stoker
from stoker.errors import ConfigError
from stoker.tune.configured import ConfigObjective, read_search
from stoker.tune.objective import Reporter

CONFIG = """\
data: {store: w.stoker, view: {name: windows, length: 8, horizon: 1}, batch_size: 32}
split: {name: grouped, valid: 0.25}
model: {name: mlp, width: 8}
train: {epochs: 2, device: cpu}
search:
  space:
    lr: [log, 1e-4, 1e-1]
    model.width: [4, 8]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    waves = np.sin(np.arange(64) / 5 + np.arange(8)[:, None]).astype("f4")
    stoker.Store.from_arrays(x=list(waves)).save(tmp_path / "w.stoker")
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_section_is_read_with_names_in_full_and_ignored_by_training(folder: Path) -> None:
    section = read_search("c.yaml")
    assert sorted(section.space.distributions) == ["model.width", "optimizer.lr"]
    assert section.metric == "val_loss"
    assert stoker.experiment.load("c.yaml").data.batch_size == 32
    (folder / "space.yaml").write_text("space: {optimizer.lr: [log, 1e-4, 1e-2]}\nbudget: 30\nmetric: val_mae\n")
    other = read_search("c.yaml", "space.yaml")
    assert (other.budget, other.metric, list(other.space.distributions)) == (30, "val_mae", ["optimizer.lr"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("metric: val_loss", "does not say what to search"),
        ("{space: {lr: [log, 1, 2]}, speed: 3}", "search.speed is not known; expected one of space, budget"),
        ("space: {learning_rat: [log, 1, 2]}", "search.space learning_rat is not known"),
    ],
)
def test_an_invalid_section_is_an_error(folder: Path, text: str, words: str) -> None:
    (folder / "space.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_search("c.yaml", "space.yaml")
    assert words in str(error.value)


def test_a_trial_trains_the_config_with_its_values_and_seed(folder: Path) -> None:
    objective = ConfigObjective("c.yaml")
    trial = Reporter(number=0, seed=3, stops=lambda steps: False)
    value = objective({"optimizer.lr": 0.01, "model.width": 4}, trial, 3)
    assert list(trial.steps) == [1, 2]
    assert value == min(trial.steps.values())
    path = folder / "same.yaml"
    path.write_text(CONFIG)
    values = ["optimizer.lr=0.01", "model.width=4", "train.seed=3"]
    result = stoker.experiment.run(path, overrides=values, folder=folder / "run", progress=False)
    assert result.best == value  # the search trains what `stoker train` would
    stopped = Reporter(number=0, seed=3, stops=lambda steps: True)
    objective({"optimizer.lr": 0.01, "model.width": 4}, stopped, 3)
    assert list(stopped.steps) == [1]
    assert not (folder / "runs").exists()
    assert objective.size() == "392 training samples x 2 epochs"


def test_a_metric_that_an_epoch_does_not_have_is_an_error(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"the metric to search by is 'val_auc', but an epoch has .*val_loss"):
        ConfigObjective("c.yaml", (), "val_auc")({}, Reporter(number=0, seed=0, stops=lambda steps: False), 0)


def test_the_commands_work_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stoker.cli.main import main

    main(["tune", "search", "c.yaml", "--budget", "6", "--json", "--out", "best.yaml"])
    found = json.loads(capsys.readouterr().out)
    assert (found["stopped"], found["complete"] + found["pruned"]) == ("finished", 6)
    assert stoker.experiment.load("best.yaml").optimizer.lr == found["best"]["params"]["optimizer.lr"]
    main(["tune", "search", "c.yaml", "--budget", "6", "--quiet"])  # the same command has nothing left to do
    assert "6 trials" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        main(["tune", "search", "c.yaml", "--out", "best.yaml"])
    assert end.value.code == 2
    assert "best.yaml already exists" in capsys.readouterr().err

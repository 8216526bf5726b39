from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import optuna
import pytest

import stoker
from stoker.errors import ConfigError
from stoker.tune.configured import ConfigObjective, read_search

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
    assert sorted(section.space) == ["model.width", "optimizer.lr"]
    assert section.metric == "val_loss"
    assert stoker.experiment.load("c.yaml").data.batch_size == 32
    (folder / "d.yaml").write_text("search: {space: {lr: [log, 1e-4, 1e-2]}, budget: 30, metric: val_mae, on_constant: warn}\n")
    other = read_search("d.yaml")
    assert (other.budget, other.metric, other.on_constant, list(other.space)) == (30, "val_mae", "warn", ["optimizer.lr"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{metric: val_loss}", "does not say what to search"),
        ("{space: {lr: [log, 1, 2]}, speed: 3}", "search.speed is not known; expected one of space, budget"),
        ("{space: {learning_rat: [log, 1, 2]}}", "search.space learning_rat is not known"),
    ],
)
def test_an_invalid_section_is_an_error(folder: Path, text: str, words: str) -> None:
    (folder / "d.yaml").write_text(f"search: {text}\n")
    with pytest.raises(ConfigError) as error:
        read_search("d.yaml")
    assert words in str(error.value)


def test_a_trial_trains_the_config_with_its_values_and_seed(folder: Path) -> None:
    objective = ConfigObjective("c.yaml")
    study = optuna.create_study(pruner=optuna.pruners.NopPruner())
    value = objective({"optimizer.lr": 0.01, "model.width": 4}, study.ask(), 3)
    steps = study.trials[0].intermediate_values
    assert list(steps) == [1, 2]
    assert value == min(steps.values())
    path = folder / "same.yaml"
    path.write_text(CONFIG)
    values = ["optimizer.lr=0.01", "model.width=4", "train.seed=3"]
    result = stoker.experiment.run(path, overrides=values, folder=folder / "run", progress=False)
    assert result.best == value  # the search trains what `stoker train` would
    study.pruner = optuna.pruners.ThresholdPruner(upper=-1.0)
    objective({"optimizer.lr": 0.01, "model.width": 4}, study.ask(), 3)
    assert list(study.trials[1].intermediate_values) == [1]
    assert not (folder / "runs").exists()


def test_a_metric_that_an_epoch_does_not_have_leaves_no_study(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stoker.cli.main import main

    for name in ("nope", "val_auc"):
        with pytest.raises(SystemExit) as end:
            main(["tune", "search", "c.yaml", "--metric", name, "--budget", "2", "--quiet"])
        assert end.value.code == 2
        assert f"is '{name}', but an epoch has loss, val_loss" in capsys.readouterr().err
    assert not Path("runs/c/study.journal").exists()
    main(["tune", "search", "c.yaml", "--metric", "loss", "--budget", "2", "--quiet"])  # the negative control


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


@pytest.mark.promise("P28")
def test_a_study_keeps_its_metric_and_direction(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stoker.cli.main import main

    main(["tune", "search", "c.yaml", "--budget", "2", "--quiet"])
    (folder / "up.yaml").write_text(CONFIG + "  direction: maximize\n")
    for config, options, words in (
        ("c.yaml", ["--metric", "loss"], "metric is 'loss', but the study 'search' in runs/c/study.journal has 'val_loss'"),
        ("up.yaml", [], "direction is 'maximize', but the study 'search' in runs/c/study.journal has 'minimize'"),
    ):
        capsys.readouterr()
        options = [*options, "--storage", "runs/c/study.journal"]
        with pytest.raises(SystemExit) as end:
            main(["tune", "search", config, "--budget", "4", *options, "--quiet"])
        assert end.value.code == 2
        [line] = capsys.readouterr().err.splitlines()
        assert words in line
    main(["tune", "search", "c.yaml", "--budget", "3", "--metric", "val_loss", "--quiet"])  # the negative control
    assert "3 trials" in capsys.readouterr().out

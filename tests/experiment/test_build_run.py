"""A config as a library: loaded, run, resumed; and run folders of earlier versions."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.cli.trainings import make_folder

import stoker
from stoker.errors import ConfigError, OptionError
from stoker.experiment.parse import check, read_saved


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return make_folder(tmp_path)


def test_a_config_is_loaded_run_and_resumed(folder: Path) -> None:
    config = stoker.experiment.load("c.yaml", overrides=["epochs=1"])
    assert (config.train.folder, config.train.epochs) == ("runs/c", 1)
    lines: list[str] = []
    result = stoker.experiment.run(config, progress=False, report=lines.append)
    assert (result.stopped, result.epoch, result.folder) == ("finished", 1, Path("runs/c"))
    assert lines[0].startswith("feed of waves.stoker")
    with pytest.raises(OptionError, match=r"runs/c has a run already\. Resume it \(resume=True\)"):
        stoker.experiment.run("c.yaml", progress=False)
    longer = ("epochs=2",)
    with pytest.raises(stoker.errors.CheckpointInvalidError, match=r"train\.epochs: 1 saved, 2 now"):
        stoker.experiment.run("runs/c", resume=True, overrides=longer, progress=False)
    assert stoker.experiment.run("runs/c", resume=True, overrides=longer, allow=["epochs"], progress=False).epoch == 2
    same = stoker.experiment.load("c.yaml", overrides=longer)
    assert stoker.experiment.run(same, resume=True, progress=False).epoch == 2, "a config is compared with that of its folder"
    assert stoker.experiment.run(config, overwrite=True, progress=False).epoch == 1


def test_options_that_contradict_each_other(folder: Path) -> None:
    with pytest.raises(OptionError, match="allow= is for resume=True"):
        stoker.experiment.run("c.yaml", allow=["epochs"])
    with pytest.raises(OptionError, match="overwrite=True is for a new run"):
        stoker.experiment.run("c.yaml", resume=True, overwrite=True)
    with pytest.raises(ConfigError, match="it is not the folder of a run"):
        stoker.experiment.run("gone", resume=True)
    config = stoker.experiment.load("c.yaml")
    nowhere = msgspec.structs.replace(config, train=msgspec.structs.replace(config.train, folder=None))
    with pytest.raises(OptionError, match="no folder for the run"):
        stoker.experiment.run(nowhere)


def test_a_run_folder_of_an_earlier_version_is_read(folder: Path) -> None:
    """Its keys had other names, which are no names in a new config."""
    earlier = {"accumulate": 2, "clip": 1.5, "keep": 3, "ranks": "ddp", "recompute": True, "writers": ["tensorboard"]}
    text = (folder / "c.yaml").read_text() + "".join(f"  {name}: {value}\n" for name, value in earlier.items())
    (folder / "config.yaml").write_text(text.replace("True", "true").replace("'", ""))
    train = check(read_saved(folder), stoker.experiment.Config).train
    assert (train.grad_accum_steps, train.max_grad_norm, train.keep_checkpoints) == (2, 1.5, 3)
    assert (train.parallel, train.activation_checkpointing, train.loggers) == ("ddp", True, ["tensorboard"])
    with pytest.raises(ConfigError, match=r"config.yaml:13: train.accumulate is not known"):
        stoker.experiment.load(folder / "config.yaml")


def test_metrics_of_torchmetrics_by_name(folder: Path) -> None:
    pytest.importorskip("torchmetrics")
    metrics = "metrics=[mae, torchmetrics:MeanAbsoluteError, torchmetrics:regression.MeanSquaredError]"
    found = stoker.experiment.run("c.yaml", overrides=[metrics, "epochs=1"], progress=False).metrics
    assert found["val_MeanAbsoluteError"] == pytest.approx(found["val_mae"], rel=1e-5)
    assert found["val_MeanSquaredError"] > 0


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("torchmetrics:Nope", "torchmetrics has no 'Nope'"),
        ("torchmetrics:Accuracy", "cannot be made without arguments: .*task"),
        ("torchmetrics:classification.BinaryAccuracy", "metric 'BinaryAccuracy' cannot take these values"),
        ("rmse", "each one of mae, mse, accuracy, auc, or torchmetrics:NAME"),
        ("os:remove", "each one of mae, mse, accuracy, auc, or torchmetrics:NAME"),
    ],
)
def test_metrics_that_cannot_be_measured_are_named(folder: Path, name: str, line: str) -> None:
    pytest.importorskip("torchmetrics")
    with pytest.raises(stoker.StokerError, match=line):
        stoker.experiment.run("c.yaml", overrides=[f"metrics=['{name}']"], progress=False)

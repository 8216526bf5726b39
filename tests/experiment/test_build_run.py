"""A config as a library: loaded, run, resumed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.cli.training_folder import make_folder

import stoker
from stoker.errors import ConfigError, OptionError
from stoker.experiment import build, config, prepare
from stoker.experiment.build import open_data
from stoker.train import state_dict


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


def test_a_dict_is_a_config_with_the_same_weights_as_its_file(folder: Path) -> None:
    from stoker.experiment.parse import read_document

    tree = read_document(Path("c.yaml")).tree
    stoker.experiment.run("c.yaml", progress=False)
    stoker.experiment.run(tree, folder="runs/dict", progress=False)
    weights = [stoker.load(run).model.state_dict() for run in ("runs/c", "runs/dict")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    with pytest.raises(ConfigError, match=r"the config.*batch_sise.*batch_size"):
        stoker.experiment.run({**tree, "data": {**tree["data"], "batch_sise": 4}}, folder="runs/bad", progress=False)
    with pytest.raises(OptionError, match="the config has no folder for the run"):
        stoker.experiment.run(tree, progress=False)


def test_a_run_on_some_of_the_series(folder: Path) -> None:
    """The feeds and the scaler see the chosen series alone, with a split and without."""
    from stoker.experiment.build import make_trained, open_data

    where = "data.where=kind == 0"
    for overrides in ([where], [where, "split=null"]):
        config = stoker.experiment.load("c.yaml", overrides=overrides)
        fed = open_data(config, "cpu")
        whole = open_data(stoker.experiment.load("c.yaml", overrides=overrides[1:]), "cpu")
        assert fed.train.num_samples * 3 == whole.train.num_samples
        model, _ = make_trained(config, fed)
        scaler = next(one for one in model.modules() if isinstance(one, stoker.split.Scaler))
        steps = stoker.split.Scaler.fit(fed.store, fed.train.subset, columns=["close", "up"])
        assert (
            scaler.mean.tolist()
            == steps.mean.tolist()
            != stoker.split.Scaler.fit(fed.store, None, columns=["close", "up"]).mean.tolist()
        )
    with pytest.raises(OptionError, match="leaves no sample"):
        open_data(stoker.experiment.load("c.yaml", overrides=["data.where=num_steps < 0"]), "cpu")


def test_views_of_a_config_have_gaps_and_random_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = pa.table({"when": [*range(20), *range(90, 120)], "x": np.arange(50.0), "y": np.arange(50.0)})
    stoker.pack(table, "s.stoker", time="when")

    def view(text: str) -> object:
        Path("v.yaml").write_text(
            f"{{data: {{store: s.stoker, view: {text}, batch_size: 4, columns: [x], target: [y]}}, model: gru}}"
        )
        return open_data(stoker.experiment.load("v.yaml"), "cpu").train.view

    assert view("{name: windows, length: 8, horizon: 1, max_gap: 5}") == stoker.Windows(8, horizon=1, max_gap=5)
    assert view("{name: sequences, max_length: 8, keep: random}") == stoker.Sequences(8, buckets=(8,), keep="random")
    with pytest.raises(OptionError, match="gaps='break' needs a frequency"):
        view("{name: segments, length: 8, horizon: 1, gaps: break}")


def test_a_config_augments_training_batches_only(folder: Path) -> None:
    code = "def double(batch, rng):\n    return {name: one * 2 if name == 'x' else one for name, one in batch.items()}\n"
    (folder / "mine.py").write_text(code)
    fed = open_data(stoker.experiment.load("c.yaml", overrides=["data.augment=mine.py:double"]), "cpu")
    assert fed.train.device_transform is not None
    assert fed.valid is None or fed.valid.device_transform is None
    assert stoker.experiment.run("c.yaml", overrides=["data.augment=mine.py:double", "epochs=1"], progress=False).epoch == 1


def test_accuracy_is_that_of_the_loss(folder: Path) -> None:
    """Logits between 0 and 1 are no probabilities: torchmetrics alone would take those of this batch for them."""
    task = open_data(stoker.experiment.load("c.yaml"), "cpu").task
    _, binary = build._metric("accuracy", config.Bce(), task)
    binary.update(prediction=torch.tensor([0.1, 0.2, 0.9, 0.3]), target=torch.tensor([1.0, 1.0, 1.0, 0.0]))
    assert binary.compute() == 0.75
    _, several = build._metric("accuracy", config.CrossEntropy(classes=3), replace(task, outputs_each=3))
    several.update(torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 1.0]]), torch.tensor([0, 2]))
    assert float(several.compute()) == 0.5
    with pytest.raises(ConfigError, match="accuracy, which needs the loss bce or cross_entropy"):
        stoker.experiment.run("c.yaml", overrides=["metrics=[accuracy]"], progress=False)


def test_small_errors_in_large_sums_count(folder: Path) -> None:
    task = open_data(stoker.experiment.load("c.yaml"), "cpu").task
    _, metric = build._metric("mae", config.Mse(), task)
    for value in [2.0**24, *[1.0] * 10]:  # float32 would stay at 2**24
        metric.update(torch.tensor([value]), torch.tensor([0.0]))
    assert float(metric.compute()) == (2**24 + 10) / 11


@pytest.mark.promise("P13")
@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_of_the_users_under_any_name_of_a_run_is_not_replaced(folder: Path, overwrite: bool) -> None:
    stoker.experiment.run("c.yaml", overrides=["epochs=1"], folder="made", progress=False)
    names = [path.name for path in Path("made").iterdir() if path.name != ".lock"]
    assert {"inputs.json", "config.yaml", "run.json", "metrics.jsonl", "checkpoints"} <= set(names)
    for name in names:
        mine = folder / f"mine-{name}" / (f"{name}/mine" if name == "checkpoints" else name)
        mine.parent.mkdir(parents=True)
        mine.write_text("precious")
        with pytest.raises(OptionError, match=r"mine-"):
            stoker.experiment.run("c.yaml", folder=folder / f"mine-{name}", overwrite=overwrite, progress=False)
        assert mine.read_text() == "precious"


@pytest.mark.promise("P13", control=True)
def test_negative_control_without_the_check_a_file_of_the_users_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "inputs.json").write_text("precious")
    monkeypatch.setattr(prepare, "_check_folder", lambda *_, **__: None)
    stoker.experiment.run("c.yaml", overrides=["epochs=1"], folder="mine", progress=False)
    assert (folder / "mine" / "inputs.json").read_text() != "precious"


DRAWING = """\
import random
import numpy as np
from torch import nn


class Noisy(nn.Module):
    def __init__(self, task):
        super().__init__()
        self.layer = nn.Linear(task.length, task.steps)

    def forward(self, batch):
        noise = random.random() + float(np.random.rand()) if self.training else 0.0
        return self.layer(batch["close"] + noise)[..., None]


def make(task):
    return Noisy(task)
"""


def weights_of_noisy_run(folder: Path) -> list[bytes]:
    result = stoker.experiment.run(
        "c.yaml", overrides=["epochs=1", "model=noisy.py:make", "data.target=[close]"], folder=folder, progress=False
    )
    return [path.read_bytes() for path in sorted((result.folder / "checkpoints").glob("step-*/*.safetensors"))]


@pytest.mark.promise("P23")
@pytest.mark.parametrize("seeds_all", [True, False], ids=["", "negative control: torch alone is seeded"])
def test_the_seed_is_that_of_every_generator_that_a_model_may_draw_from(
    folder: Path, seeds_all: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "noisy.py").write_text(DRAWING)
    if not seeds_all:
        monkeypatch.setattr(state_dict, "seed_all", torch.manual_seed)
    runs = []
    for number in range(2):
        random.seed(number)
        np.random.seed(number)
        runs.append(weights_of_noisy_run(folder / f"run{number}"))
    assert (runs[0] == runs[1]) == seeds_all

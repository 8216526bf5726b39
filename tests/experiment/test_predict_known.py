"""Columns that are known in the predicted steps (`data.known`), and categories: trained, predicted and exported alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.cli.calling import Done

import stoker
from stoker.errors import ConfigError, OptionError

Stoker = Callable[..., Done]

CONFIG = """\
data:
  store: d.stoker
  view: {name: windows, length: 4, horizon: 2}
  columns: [y, temp, day, shop_size, kind]
  known: [temp, day]
  target: [y]
  batch_size: 32
model: linear
optimizer: {lr: 0.05}
train: {epochs: 15, folder: run, device: cpu, precision: fp32, metrics: [], execution: {compile: false}}
"""
OWN = """\
import torch
class Ahead(torch.nn.Module):
    def __init__(self, task):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def forward(self, batch):
        return (batch["temp_target"] * self.weight)[..., None]
"""
DAYS = ["mon", "tue", "wed"]


def rows(steps: int, rng: np.random.Generator, *, ahead: int = 0) -> str:
    """A table in which y is 3 * temp, and 5 more on Tuesdays, of the same step: the past alone does not tell it."""
    lines = ["shop,ts,y,temp,day,shop_size,kind"]
    for shop in ("a", "b"):
        for step in range(steps):
            temp, day = rng.normal(), DAYS[int(rng.integers(3))]
            y = "" if step >= steps - ahead else f"{3 * temp + 5 * (day == 'tue'):.6f}"
            stamp = np.datetime64("2024-01-01", "s") + np.timedelta64(step, "h")
            lines.append(f"{shop},{stamp},{y},{temp:.6f},{day},{1 + (shop == 'b')},{'city' if shop == 'a' else 'village'}")
    return "\n".join(lines) + "\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("d.csv").write_text(rows(200, np.random.default_rng(0)))
    Path("c.yaml").write_text(CONFIG)
    Path("own.py").write_text(OWN)
    stoker.pack("d.csv", "d.stoker", series="shop", time="ts")
    return tmp_path


def truth(name: str, ahead: int) -> list[float]:
    """What y is in the last steps of each series, by what is known of them."""
    columns = [line.split(",") for line in Path(name).read_text().splitlines()[1:]]
    last = [row for shop in ("a", "b") for row in [one for one in columns if one[0] == shop][-ahead:]]
    return [3 * float(row[3]) + 5 * (row[4] == "tue") for row in last]


def error_of(**overrides: Any) -> float:
    """The largest error of predictions for the rows of the horizon."""
    sets = [f"{name}={value}" for name, value in overrides.items()]
    stoker.experiment.run("c.yaml", overrides=sets, progress=False, overwrite=True)
    Path("new.csv").write_text(rows(40, np.random.default_rng(1), ahead=2))
    table = stoker.load("run").predict("new.csv")
    assert table["step"].to_pylist() == [38, 39] * 2
    assert str(table["time"][0]) == "2024-01-02 14:00:00"
    return float(np.abs(np.array(table["prediction"].to_pylist()) - truth("new.csv", 2)).max())


GRU = {"model": "{name: gru, width: 16, layers: 1}", "epochs": 25, "optimizer.lr": 0.03}


@pytest.mark.parametrize("options", [{}, {"scale": "per_series"}, {"observed": "true"}, GRU])
def test_what_is_known_of_the_horizon_decides_the_prediction(folder: Path, options: dict[str, Any]) -> None:
    assert error_of(**options) < 0.6


def test_negative_control_without_the_known_columns_predictions_are_wrong(folder: Path) -> None:
    stoker.experiment.run("c.yaml", overrides=["known=null"], progress=False)
    Path("new.csv").write_text(rows(40, np.random.default_rng(1), ahead=2))
    past = "\n".join(line for line in Path("new.csv").read_text().splitlines() if ",," not in line)
    Path("past.csv").write_text(past + "\n")
    table = stoker.load("run").predict("past.csv")
    assert np.abs(np.array(table["prediction"].to_pylist()) - truth("new.csv", 2)).max() > 3


def test_all_windows_are_predicted_without_reading_their_targets(folder: Path) -> None:
    stoker.experiment.run("c.yaml", progress=False)
    run, store = stoker.load("run"), stoker.open("d.stoker")
    table = run.predict("d.stoker", which="all", stride=50)
    columns = {name: store.column(name) for name in store.schema if store.schema[name].dtype is not None}
    assert len(table) == 2 * 2 * 4
    frame = Path("d.csv").read_text().splitlines()
    Path("other.csv").write_text(
        "\n".join([frame[0], *(",".join([*(p := line.split(","))[:2], "0", *p[3:]]) for line in frame[1:])])
    )
    changed = run.predict("other.csv", which="all", stride=50)
    assert columns["y"].std() > 0
    assert np.allclose(table["prediction"], changed["prediction"], atol=2.0), "inputs y differ, but no target is read"


@pytest.mark.parametrize(("model", "onnx"), [("linear", False), ("own.py:Ahead", False)])
def test_a_model_that_reads_what_is_known_is_predicted_and_exported(stoker: Stoker, folder: Path, model: str, onnx: bool) -> None:
    done = stoker("train", "c.yaml", "--quiet", "--set", f"model={model}", "--set", "epochs=2", "--set", "scale=false")
    assert done.code == 0, done.err
    Path("new.csv").write_text(rows(40, np.random.default_rng(1), ahead=2))
    done = stoker("predict", "run", "--data", "new.csv", "--json")
    assert done.code == 0, done.err
    done = stoker("export", "run", "m.pt2")
    assert done.code == 0, done.err
    from safetensors.torch import load_file

    golden = load_file("m.pt2.golden.safetensors")
    assert {"temp_target"} <= golden.keys()
    assert "y_target" not in golden
    answer = golden.pop("prediction")
    module: Any = torch.export.load("m.pt2").module()
    torch.testing.assert_close(module(golden), answer)


def test_a_model_that_reads_targets_that_are_not_known_is_refused_with_the_setting(stoker: Stoker, folder: Path) -> None:
    sets = ["--set", "model=own.py:Ahead", "--set", "known=null", "--set", "epochs=1"]
    assert stoker("train", "c.yaml", "--quiet", *sets).code == 0
    Path("new.csv").write_text(rows(40, np.random.default_rng(1)))
    for call in (["predict", "run", "--data", "new.csv"], ["export", "run", "m.pt2"]):
        done = stoker(*call)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "data.known: [temp]" in done.err


def test_data_without_the_rows_of_the_horizon_is_refused(folder: Path) -> None:
    stoker.experiment.run("c.yaml", overrides=["epochs=1"], progress=False)
    with pytest.raises(OptionError) as error:
        stoker.load("run").predict("d.csv")
    assert (error.value.parameter, error.value.column) == ("which", "y")


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ("known=[y]", "which is predicted"),
        ("known=[shop]", "one value per series"),
        ("known=[nothing]", "names 'nothing'"),
        ("view.horizon=0", "has no horizon"),
    ],
)
def test_what_cannot_be_known_is_refused(folder: Path, assignment: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        stoker.experiment.run("c.yaml", overrides=[assignment], progress=False)

"""`data.scale` per series: the feed scales, metrics are in units of the store, the run keeps the scaler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.errors import CheckpointInvalidError
from stoker.experiment.build import make_trained, open_data
from stoker.experiment.config import SeriesScale
from stoker.split import SeriesScaler

CONFIG = """\
data:
  store: waves.stoker
  view: {name: windows, length: 8, horizon: 2}
  batch_size: 64
  columns: [close]
  scale: {per: series, method: robust}
split: {valid: 0.2, overlap: inputs}
model: linear
train: {epochs: 1, precision: fp32, execution: {compile: false}, metrics: [mae]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Series of very different levels."""
    monkeypatch.chdir(tmp_path)
    steps, rng = np.arange(120), np.random.default_rng(0)
    waves = [((np.sin(steps / 5 + i) + rng.normal(size=120) * 0.1) * 10.0**i + 10.0 ** (i + 1)).astype("f4") for i in range(3)]
    up = [(np.sin(steps / 5 + i) > 0).astype("f4") for i in range(3)]
    stoker.Store.from_arrays(close=waves, up=up, kind=np.array([0, 1, 1])).save(tmp_path / "waves.stoker")
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


def load(*overrides: str) -> Any:
    return stoker.experiment.load("c.yaml", overrides=overrides)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("per_series", "per_series"),
        ("{method: minmax}", SeriesScale(method="minmax")),
        ("{per: series, method: robust, unseen: global}", SeriesScale(method="robust", unseen="global")),
        ("true", True),
        ("false", False),
        ("null", None),
    ],
)
def test_scale_is_a_word_a_truth_value_or_a_section(folder: Path, text: str, value: object) -> None:
    assert load(f"data.scale={text}").data.scale == value
    assert load(f"data.scale={text}", "data.scale.method=meanabs").data.scale.method == "meanabs"


def test_the_feeds_scale_and_the_model_does_not(folder: Path) -> None:
    config = load()
    fed = open_data(config, "cpu")
    assert fed.split.margins.overlap == "inputs"
    fed.scaler.check(fed.split)
    model, _ = make_trained(config, fed)
    assert "scaler.mean" not in model.state_dict()
    values = torch.cat([batch["close"] for batch in fed.train])
    assert values.abs().max() < 5
    assert open_data(load("data.scale=true"), "cpu").scaler is None


def test_metrics_are_in_units_of_the_store(folder: Path) -> None:
    """The loss is that of scaled values; what metrics get is inverted, as a slow way does it row by row."""
    config = load()
    fed = open_data(config, "cpu")
    model, loss = make_trained(config, fed)
    batch, raw = next(iter(fed.train)), next(iter(open_data(load("data.scale=false"), "cpu").train))
    given = loss(model, batch)
    target = given["target"][..., 0]
    torch.testing.assert_close(target, raw["close_target"], rtol=1e-5, atol=1e-4)
    with torch.no_grad():
        scaled = model(batch)[..., 0]
    for row, series in enumerate(batch["series"].tolist()):
        expected = fed.scaler.inverse(scaled[row], [series], "close")
        torch.testing.assert_close(given["prediction"][row, :, 0], expected, rtol=1e-5, atol=1e-3)
    assert float(given["loss"].detach()) == pytest.approx(float(((scaled - batch["close_target"]) ** 2).mean()), rel=1e-5)


@pytest.mark.promise("P16")
def test_a_run_keeps_its_scaler_and_a_resume_compares_it(folder: Path) -> None:
    result = stoker.experiment.run(load(), progress=False)
    kept = folder / "runs/c/scaler.safetensors"
    scaler = SeriesScaler.open(kept)
    assert (scaler.method, scaler.columns) == ("robust", ("close",))
    assert result.metrics["val_mae"] > 1, "in units of the store, whose values go up to 1,000"
    longer = ["epochs=2"]
    assert stoker.experiment.run("runs/c", resume=True, overrides=longer, allow=["epochs"], progress=False).epoch == 2
    with pytest.raises(CheckpointInvalidError, match=r"data\.scale\.method: 'robust' saved, 'standard' now"):
        stoker.experiment.run("runs/c", resume=True, overrides=[*longer, "data.scale={}"], progress=False)
    stoker.experiment.run(load("data.scale=true"), overwrite=True, progress=False)
    assert not kept.exists(), "the run that replaces it scales inside its model"


def test_a_trainer_compares_the_scaler(folder: Path) -> None:
    """Without a config it is the fingerprint of the feed that differs."""
    store = stoker.open("waves.stoker")
    view = stoker.Windows(8, horizon=2)
    split = stoker.split.chronological(store, view, fractions=(0.8, 0.2), overlap="inputs")

    def fit(method: Any, **options: Any) -> Any:
        torch.manual_seed(0)
        scaler = None if method is None else SeriesScaler.fit(store, split.train, columns=["close"], method=method)
        feed = stoker.Feed(store, view, subset=split.train, batch_size=64, columns=["close"], normalize=scaler)
        model = torch.nn.Linear(8, 2)
        trainer = stoker.Trainer(
            model, lambda m, b: ((m(b["close"]) - b["close_target"]) ** 2).mean(), torch.optim.SGD(model.parameters(), 1e-3),
            folder="runs/t", progress=False, precision="fp32", execution=stoker.train.Execution(compile=False),
        )  # fmt: skip
        return trainer.fit(feed, epochs=1, **options)

    fit("standard")
    fit("standard", resume=True)
    for other in ("robust", None):
        with pytest.raises(CheckpointInvalidError, match=r"data\.scaler"):
            fit(other, resume=True)

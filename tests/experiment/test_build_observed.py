"""`data.observed`: missing values are 0 after scaling, the model sees their masks, and missing targets do not count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.errors import NonFiniteError
from stoker.experiment.build import make_trained, open_data
from stoker.experiment.models import Task, mse

CONFIG = """\
data:
  store: meters.stoker
  view: {name: windows, length: 8, horizon: 2}
  batch_size: 16
  columns: [load, count]
  target: [load]
  observed: true
model: linear
train: {epochs: 1, precision: fp32, execution: {compile: false}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two series with gaps in `load`, and integers beside it."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    loads = [(rng.normal(size=60) * 10.0**i + 100).astype("f4") for i in (1, 2)]
    for load in loads:
        load[rng.choice(60, 12, replace=False)] = np.nan
        load[40:52] = np.nan  # whole windows and whole targets
    counts = [rng.integers(0, 9, 60) for _ in loads]
    stoker.Store.from_arrays(load=loads, count=counts).save(tmp_path / "meters.stoker")
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


def config(*overrides: str) -> Any:
    return stoker.experiment.load("c.yaml", overrides=overrides)


def test_without_masks_missing_values_stop_the_run(folder: Path) -> None:
    with pytest.raises(NonFiniteError, match="observed=True"):
        stoker.experiment.run("c.yaml", overrides=["data.observed=false"], folder="runs/nan", progress=False)


@pytest.mark.parametrize("scale", ["data.scale=true", "data.scale=false", "data.scale=per_series", "data.normalize=zero"])
@pytest.mark.parametrize("model", ["linear", "{name: gru, width: 4, layers: 1}"])
def test_a_run_and_its_predictions(folder: Path, scale: str, model: str) -> None:
    result = stoker.experiment.run("c.yaml", overrides=[scale, f"model={model}"], folder="runs/x", progress=False)
    assert result.stopped == "finished"
    assert np.isfinite(result.metrics["loss"])
    run = stoker.load("runs/x")
    found = run.predict("meters.stoker", which="all")
    assert np.isfinite(found["prediction"].to_numpy()).all()
    if model == "linear":
        np.testing.assert_allclose(found["prediction"].to_numpy(), slow_predictions(run, scale), rtol=2e-4, atol=2e-3)


def slow_predictions(run: Any, scale: str) -> list[float]:
    """One window after the other: scale, put 0 where nothing is, add the mask, multiply."""
    store, weights = stoker.open("meters.stoker"), {name: one.numpy().astype("f8") for name, one in run.model.state_dict().items()}
    matrix, bias = weights["network.layers.0.weight"], weights["network.layers.0.bias"]
    found: list[float] = []
    for number in range(2):
        load, count = (np.asarray(store[number][name], dtype="f8") for name in ("load", "count"))
        center, divisor, centers, divisors = 0.0, 1.0, np.zeros(2), np.ones(2)
        if scale == "data.scale=true":
            centers, divisors = weights["scaler.mean"], weights["scaler.std"]
            center, divisor = weights["target_scaler.mean"][0], weights["target_scaler.std"][0]
        elif scale != "data.scale=false":
            known = load[np.isfinite(load)]
            center, divisor = known.mean(), known.std()
            centers[0], divisors[0] = center, divisor
            if scale == "data.scale=per_series":
                centers[1], divisors[1] = count.mean(), count.std()
        for first in range(53):
            window = np.stack([load[first : first + 8], count[first : first + 8]], axis=1)
            mask = np.isfinite(window[:, :1])
            rows = np.concatenate([np.nan_to_num((window - centers) / divisors), mask], axis=1)
            found += list((matrix @ rows.ravel() + bias) * divisor + center)
    return found


def test_missing_targets_do_not_count(folder: Path) -> None:
    fed = open_data(config("data.scale=false"), "cpu")
    model, loss = make_trained(config("data.scale=false"), fed)
    for batch in fed.train:
        given, target = model(batch).detach().numpy()[..., 0], batch["load_target"].numpy()
        rows = []
        for row in range(16):
            counts = batch["load_target_observed"][row].numpy()
            rows.append(((given[row] - target[row])[counts] ** 2).mean() if counts.any() and batch["valid"][row] else 0.0)
        assert loss(model, batch)["loss"].item() == pytest.approx(sum(rows) / int(batch["valid"].sum()), rel=1e-5)


def test_masks_of_labels_at_the_last_step() -> None:
    task = Task(inputs={"x": 2}, targets={"y": 1}, length=3, when="last", observed=("x", "y"))
    batch = {"x": torch.ones(2, 3, 2), "x_observed": torch.rand(2, 3, 2) > 0.5, "y": torch.ones(2, 3)}
    batch["y_observed"] = torch.tensor([[True, True, False], [False, False, True]])
    assert task.weight(batch, task.target(batch)).flatten().tolist() == [False, True]
    seen = task.with_masks(task.features(batch), batch)
    torch.testing.assert_close(seen, torch.cat([batch["x_observed"].float(), batch["x_observed"].float()], dim=-1))
    assert task.num_features == 4
    assert task.entries == ("x", "x_observed")
    # A control: without masks, what is missing counts.
    plain = Task(inputs={"x": 2}, targets={"y": 1}, length=3, when="last")
    assert plain.weight(batch, plain.target(batch)).all()
    assert mse(plain).task.num_features == 2

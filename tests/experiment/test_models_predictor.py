"""Scalers inside a model: raw values in, raw values out, and padding stays nothing."""

from __future__ import annotations

from dataclasses import replace

import torch
from tests.experiment.tasks import model, store, task_and_batch

from stoker.experiment.models import Predictor
from stoker.split.scaler import Scaler


def test_raw_values_in_and_raw_values_out() -> None:
    """The same network between scalers, with values that are scaled outside of it."""
    task, batch = task_and_batch("horizon")
    task = replace(task, outputs_each=2)
    scaler = Scaler.fit(store(), None, columns=["a", "b"])
    target_scaler = Scaler.fit(store(), None, columns=["a"])
    network = model("linear", task).network
    scaled = (task.features(batch) - scaler.mean) / scaler.std
    expected = network(scaled, None) * target_scaler.std + target_scaler.mean
    found = Predictor(task, network, scaler=scaler, target_scaler=target_scaler)(batch)
    torch.testing.assert_close(found, expected)


def test_padding_stays_zero() -> None:
    task, batch = task_and_batch("series")
    scaler = Scaler.fit(store(), None, columns=["a", "b"])
    scaler.mean += 5
    network = model("linear", task).network
    predictor = Predictor(task, network, scaler=scaler)
    with torch.no_grad():
        network.layers[-1].bias.zero_()
    empty = {**batch, "mask": torch.zeros_like(batch["mask"])}
    assert predictor(empty).abs().max() == 0
    assert predictor(batch).abs().max() > 0

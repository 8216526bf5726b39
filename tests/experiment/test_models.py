"""Models: their shapes, that padding and the future are not seen, and that the last step alone is the same as among all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.experiment.tasks import NETWORKS, TASKS, model, store, task_and_batch
from tests.train.syncs import Asked, Syncs

from stoker.experiment import models
from stoker.experiment.config import Own
from stoker.experiment.models import Predictor, make_loss, make_model
from stoker.split import Scaler

KINDS = list(TASKS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_prediction_has_the_shape_of_the_task(kind: str, name: str) -> None:
    task, batch = task_and_batch(kind)
    assert not batch["valid"].all()  # so that rows without a sample take part
    prediction = model(name, task)(batch)
    assert prediction.shape == (32, task.steps, task.outputs)
    assert prediction.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_finite_though_rows_are_empty(kind: str, name: str) -> None:
    task, batch = task_and_batch(kind)
    trained = model(name, task)
    models.mse(task)(trained, batch)["loss"].backward()
    assert all(weight.grad is not None and weight.grad.isfinite().all() for weight in trained.parameters())


@pytest.mark.parametrize("kind", ["last", "series"])
@pytest.mark.parametrize("name", NETWORKS)
def test_padding_is_not_seen(kind: str, name: str) -> None:
    task, batch = task_and_batch(kind)
    trained = model(name, task)
    before = trained(batch)
    mask = batch["mask"]
    assert not mask[batch["valid"]].all()
    other = {**batch, "b": torch.where(mask[:, :, None], batch["b"], 7.0)}
    changed = (trained(other) - before).abs().amax((1, 2))[batch["valid"]]
    if name in ("mlp", "linear"):  # they rely on padding being zero, as feeds give it
        assert changed.max() > 0
    else:
        assert changed.max() == 0


def test_without_the_mask_padding_would_be_seen() -> None:
    task, batch = task_and_batch("series")
    trained = model("transformer", task)
    unmasked = {**batch, "mask": torch.ones_like(batch["mask"])}
    assert (trained(unmasked) - trained(batch)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["transformer", "gru", "mlp"])
def test_a_step_that_predicts_does_not_see_the_future(name: str) -> None:
    task, batch = task_and_batch("shift")
    trained = model(name, task)
    other = {name: values.clone() for name, values in batch.items()}
    other["a"][:, 5:] += 10
    change = (trained(other) - trained(batch)).abs().amax((0, 2))
    assert change[:5].max() == 0
    assert change[5:].min() > 0


@pytest.mark.parametrize("kind", ["horizon", "last", "series"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_last_step_alone_is_the_same_as_among_all(kind: str, causal: bool) -> None:
    """The slow twin computes all steps in the last block, and picks the last one after it."""
    from stoker.experiment.models import at_last

    task, batch = task_and_batch(kind)
    trained = model("transformer", task, causal=causal)
    network = trained.network
    x, mask = task.features(batch), task.mask(batch)
    state = network.embed(x) + network.positions
    seen = None if mask is None else torch.cat([torch.ones_like(mask[:, :1]), mask[:, 1:]], dim=1)
    for block in network.blocks:
        state = block(state, seen, alone=False)
    slow = network.head(at_last(state, seen))
    torch.testing.assert_close(trained(batch)[batch["valid"]], slow[batch["valid"]], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_neither_model_nor_loss_waits_for_the_device(kind: str, name: str) -> None:
    task, batch = task_and_batch(kind)
    trained = model(name, task).train()
    with Asked() as asked, Syncs() as syncs:
        models.huber(task)(trained, batch)["loss"].backward()
    assert (asked.seen, syncs.seen) == ([], [])


# Functions of the user's own: called with their options and the task, and what goes wrong in them is one line


CODE = """\
from torch import nn
import neighbour

def make(task, *, width=3):
    return nn.Linear(task.num_features, neighbour.times(width))

def wrong(task):
    return 3

def fails(task):
    raise RuntimeError("no such\\nluck")

def loss(model, batch, *, factor=1.0):
    return (model(batch["b"]) ** 2).mean() * factor
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend("/")  # so that what is put on the path goes again
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "neighbour.py").write_text("def times(n): return n * 2\n")
    (tmp_path / "broken.py").write_text("x = (\n")
    return tmp_path


def test_a_model_and_a_loss_of_your_own(code: Path) -> None:
    task, batch = task_and_batch("last")
    model = make_model(Own(function=f"{code}/mine.py:make", options={"width": 4}), task)
    assert isinstance(model, torch.nn.Linear)
    assert (model.in_features, model.out_features) == (2, 8)
    loss = make_loss(Own(function=f"{code}/mine.py:loss", options={"factor": 0.0}), task)
    assert loss(model, batch) == 0


# Scalers inside a model: raw values in, raw values out, and padding stays nothing


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

"""Models: their shapes, that padding and the future are not seen, and that the last step alone is the same as among all."""

from __future__ import annotations

import pytest
import torch
from tests.experiment.tasks import NETWORKS, TASKS, model, task_and_batch
from tests.train.syncs import Asked, Syncs

from stoker.experiment import models

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

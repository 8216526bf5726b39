"""Batches of NeuralForecast: each window once, and a model of theirs trains on them."""

from __future__ import annotations

import warnings

import pytest
import torch
from tests.integrations.feeds import HORIZON, LENGTH, feed

from stoker.integrations.neuralforecast import WindowBatches

pytest.importorskip("pandas")


def test_windows_are_series_of_their_own() -> None:
    source = feed()
    batch = next(iter(source))
    found = WindowBatches(feed(), target="load", exogenous=["hour"], static=["size"]).convert(batch)
    assert found["temporal"].shape == (4, 3, LENGTH + HORIZON)
    assert torch.equal(found["temporal"][:, 0], torch.cat([batch["load"], batch["load_target"]], dim=1))
    assert list(found["temporal_cols"]) == ["y", "hour", "available_mask"]
    assert found["static"].shape == (4, 1)


@pytest.mark.slow
def test_a_model_of_theirs_trains() -> None:
    models = pytest.importorskip("neuralforecast.models", reason="`make test-adapters` installs it")
    batches = WindowBatches(feed(), target="load")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = models.NHITS(
            h=HORIZON, input_size=LENGTH, windows_batch_size=None, training_data_availability_threshold=1.0,
            n_pool_kernel_size=[1, 1, 1], mlp_units=3 * [[8, 8]],
        )  # fmt: skip
        kept = model._create_windows(next(iter(batches)), step="train")[3]
        loss = model.training_step(next(iter(batches)), 0)
    loss.backward()
    assert loss.isfinite()
    assert len(kept) == 4, "of the windows that it pads, the model keeps those of the feed"

"""Predictions of a trainer: one row per sample, by the loss function or by a function of the user."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.train.training import adamw, network, pairs, trainer_of
from torch import nn

import stoker
from stoker.errors import TrainError
from stoker.feed import Returns


def make_feed(**options: Any) -> stoker.Feed:
    rng = np.random.default_rng(0)
    columns = {name: [np.cumsum(rng.standard_normal(60)) for _ in range(3)] for name in ("load", "temp")}
    view = stoker.Windows(8, stride=8, horizon=2, tail="drop")
    return stoker.Feed(stoker.Store.from_arrays(**columns), view, batch_size=16, **options)


def test_predictions_have_a_row_per_sample() -> None:
    model = nn.Linear(8, 2)
    trainer = trainer_of(model, nn.MSELoss(), adamw(model))
    feed = make_feed(columns=["load"], returns=Returns(index=True, series=True))
    trainer.fit(feed, epochs=2)
    found = trainer.predict(feed)
    assert {name: len(rows) for name, rows in found.items()} == dict.fromkeys(
        ("prediction", "target", "sample", "series"), feed.num_samples
    )
    assert found["sample"].tolist() == list(range(feed.num_samples))
    batch = feed.dataset[[0, 7]]
    assert torch.allclose(found["prediction"][[0, 7]], model.eval()(batch["load"]))
    assert torch.equal(found["target"][[0, 7]], batch["load_target"])


def test_the_average_predicts_where_there_is_one() -> None:
    model = network()
    trainer = trainer_of(model, ema=0.9)
    trainer.fit(pairs(), epochs=2)
    found = trainer.predict(pairs(2))["prediction"]
    with trainer.ema.applied(), torch.no_grad():
        assert torch.allclose(found, torch.cat([model.eval()(x) for x, _ in pairs(2)]))
    with torch.no_grad():
        assert not torch.allclose(found, torch.cat([model(x) for x, _ in pairs(2)])), "the weights themselves predict otherwise"


class WithFuture(nn.Module):
    """Reads the steps that were seen, and what is known of the steps that are predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(8 + 2, 2)

    def forward(self, batch: Any) -> Any:
        return self.line(torch.cat([batch["load"], batch["temp_target"]], dim=1))


def test_known_future_covariates_are_read_by_a_loss_of_ones_own() -> None:
    def loss(model: nn.Module, batch: Any) -> dict[str, Any]:
        errors = torch.where(batch["valid"], (model(batch) - batch["load_target"]).square().mean(1), 0)
        return {"loss": errors.sum() / batch["valid"].sum(), "prediction": model(batch), "target": batch["load_target"]}

    model = WithFuture()
    trainer = trainer_of(model, loss, adamw(model))
    feed = make_feed()
    trainer.fit(feed, epochs=1)
    assert torch.equal(
        trainer.predict(feed)["prediction"], trainer.predict(feed, forward=lambda model, batch: model(batch))["prediction"]
    )


def test_a_loss_without_predictions_is_named() -> None:
    model = network()
    trainer = trainer_of(model, lambda model, batch: model(batch[0]).mean())
    with pytest.raises(TrainError, match=r"returns no 'prediction'; .* Pass forward="):
        trainer.predict(pairs(2))
    assert trainer.predict(pairs(2), forward=lambda model, batch: model(batch[0]))["prediction"].shape == (32, 1)

"""Batches of pytorch-forecasting: equal to those of its own `TimeSeriesDataSet`, and trained on by one of its models."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.integrations.feeds import HORIZON, LENGTH, feed, store

from stoker.integrations.pytorch_forecasting import ForecastBatches

NAMES: dict[str, Any] = {"target": "load", "static_reals": ["size"], "known_reals": ["hour"], "unknown_reals": ["load"]}


def batches(**options: Any) -> ForecastBatches:
    return ForecastBatches(feed(return_index=True, return_series=True, **options), **NAMES)


@pytest.fixture
def theirs() -> Any:
    package = pytest.importorskip("pytorch_forecasting", reason="`make test-adapters` installs it")
    import pandas as pd

    rows = [
        {"series": str(i), "time": t, "load": float(one["load"][t]), "hour": float(one["hour"][t]), "size": float(one["size"])}
        for i, one in enumerate(store())
        for t in range(one.num_steps)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return package.TimeSeriesDataSet(
            pd.DataFrame(rows), time_idx="time", target="load", group_ids=["series"], max_encoder_length=LENGTH,
            min_encoder_length=LENGTH, max_prediction_length=HORIZON, min_prediction_length=HORIZON,
            static_reals=["size"], time_varying_known_reals=["hour"], time_varying_unknown_reals=["load"],
            target_normalizer=package.data.encoders.TorchNormalizer(method="identity"),
            scalers={"size": None, "hour": None},
        )  # fmt: skip


def test_batches_equal_those_of_a_time_series_data_set(theirs: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loader = list(theirs.to_dataloader(train=False, batch_size=100))
    ours = ForecastBatches(feed(batch_size=100, last_batch="short", return_index=True, return_series=True), **NAMES)
    (x, (y, _)), (their_x, (their_y, _)) = next(iter(ours)), loader[0]

    def places(one: dict[str, torch.Tensor]) -> list[int]:
        keys = [tuple(row) for row in torch.cat([one["groups"], one["decoder_time_idx"][:, :1]], dim=1).tolist()]
        return sorted(range(len(keys)), key=keys.__getitem__)

    mine, their = places(x), places(their_x)
    assert len(mine) == len(their)
    assert x.keys() <= their_x.keys()
    for name in x.keys() - {"target_scale"}:
        assert torch.equal(x[name][mine].double(), their_x[name][their].double()), name
    assert torch.equal(y[mine], their_y[their])


@pytest.mark.slow
def test_a_model_of_theirs_trains(theirs: Any) -> None:
    import pytorch_forecasting

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = pytorch_forecasting.TemporalFusionTransformer.from_dataset(theirs, hidden_size=8, log_interval=0)
        x, y = next(iter(batches()))
        loss = model.loss(model(x)["prediction"], y)
    loss.backward()
    assert loss.isfinite()
    assert any(weight.grad is not None and weight.grad.abs().sum() > 0 for weight in model.parameters())

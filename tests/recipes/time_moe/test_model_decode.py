"""Forecasts: what is kept of earlier points is what would be computed again, and heads are used as far as they fit."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from tests.recipes.time_moe.test_model import model_of

from stoker_recipes.time_moe import SIZES
from stoker_recipes.time_moe.layers import Cache


def recomputed(model: torch.nn.Module, context: torch.Tensor, horizon: int) -> torch.Tensor:
    """The same forecast, all positions computed at each step."""
    series = context
    while (remaining := context.shape[1] + horizon - series.shape[1]) > 0:
        head = max(one for one in model.size.horizons if one <= remaining)
        series = torch.cat([series, model.heads.predict(model(series)[:, -1], head)], 1)
    return series[:, context.shape[1] :]


@pytest.mark.parametrize("horizon", [1, 7, 8, 50, 96, 137])
def test_forecast_is_that_without_a_cache(horizon: int) -> None:
    model, context = model_of(SIZES["tiny"], torch.float32), torch.randn(3, 30, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = recomputed(model, context, horizon)
    found = model.forecast(context, horizon)
    assert found.shape == (3, horizon)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_a_point_is_inspected_once() -> None:
    model = model_of(SIZES["tiny"], torch.float32)
    with mock.patch.object(Cache, "extend", autospec=True, side_effect=Cache.extend) as extend:
        model.forecast(torch.randn(1, 5), 107)
    assert sum(call.args[1].shape[1] for call in extend.call_args_list) == model.size.layers * (5 + 106)

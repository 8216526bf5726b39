"""TS2Vec's forecasting protocol: representations of the past alone, and the ridge regression of scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.recipes.timehut.plain_methods import PlainEncoder

from stoker_recipes.timehut.model import initial_weights, to_tensors
from stoker_recipes.timehut.predicting import TrainedEncoder
from stoker_recipes.timehut.protocols import PENALTIES, score_forecasts, step_representations
from stoker_recipes.timehut.settings import make_settings

SETTINGS = make_settings("ts2vec", hidden=5, depth=3, width=9)


def new_encoder(channels: int) -> TrainedEncoder:
    row = initial_weights(SETTINGS.size(channels), 3)
    return TrainedEncoder(row=row, channels=channels, settings=SETTINGS, scaler=None, length=30, updates=0)


@pytest.mark.parametrize("mask_last", [False, True])
def test_each_step_is_encoded_from_its_own_window(mask_last: bool) -> None:
    values = np.random.default_rng(0).normal(size=(2, 14, 2)).astype(np.float32)
    values[1, 4] = np.nan
    encoder = new_encoder(2)
    found = step_representations(encoder, values, padding=6, mask_last=mask_last)
    plain = PlainEncoder(2, hidden=5, depth=3, width=9)
    plain.load_state_dict(to_tensors(encoder.row, SETTINGS.size(2)))
    for n in range(2):
        for t in range(14):
            window = np.full((7, 2), np.nan, np.float32)
            past = values[n, max(0, t - 6) : t + 1]
            window[7 - len(past) :] = past
            mask = torch.ones(1, 7, dtype=torch.bool)
            mask[0, -1] = not mask_last
            with torch.no_grad():
                expected = plain(torch.from_numpy(window)[None], mask)[0, -1]
            assert np.abs(found[n, t] - expected.numpy()).max() < 1e-5


@pytest.mark.promise("P29")
def test_representations_know_nothing_of_the_future() -> None:
    values = np.random.default_rng(1).normal(size=(1, 20, 1)).astype(np.float32)
    changed = values.copy()
    changed[0, 12:] += 5
    one, other = (step_representations(new_encoder(1), each, padding=8) for each in (values, changed))
    assert np.array_equal(one[0, :12], other[0, :12])
    assert np.abs(one[0, 12:] - other[0, 12:]).max() > 1e-3  # negative control


@pytest.mark.promise("P29")
def test_scores_are_those_of_a_loop() -> None:
    from sklearn.linear_model import Ridge

    values = np.sin(np.arange(150) / 3)[None, :, None].astype(np.float32)
    values = values + np.random.default_rng(3).normal(0, 0.05, values.shape).astype(np.float32)
    encoder = new_encoder(1)
    (score,) = score_forecasts(encoder, values, horizons=[3], padding=10)
    found = step_representations(encoder, values, padding=10)[0].astype(np.float64)
    parts = []
    for begin, end, skip in ((0, 90, 10), (90, 120, 0), (120, 150, 0)):
        steps = range(begin + skip, end - 3)
        parts.append((found[steps], np.stack([values[0, t + 1 : t + 4, 0] for t in steps]).astype(np.float64)))
    errors = {}
    for penalty in PENALTIES:
        fitted = Ridge(alpha=penalty).fit(*parts[0])
        error = fitted.predict(parts[1][0]) - parts[1][1]
        errors[penalty] = (np.sqrt((error**2).mean()) + np.abs(error).mean(), fitted)
    best = min(errors, key=lambda one: errors[one][0])
    error = errors[best][1].predict(parts[2][0]) - parts[2][1]
    assert score.penalty == best
    assert score.mse == pytest.approx((error**2).mean(), rel=1e-6)
    assert score.mae == pytest.approx(np.abs(error).mean(), rel=1e-6)

"""Samples as pairs: for skorch and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.integrations.feeds import HORIZON, LENGTH, feed, store
from torch.utils.data import DataLoader

from stoker.integrations.pairs import PairDataset, to_arrays


def expected() -> tuple[np.ndarray, np.ndarray]:
    """All windows, cut by hand."""
    windows = [
        series["load"][start : start + LENGTH + HORIZON]
        for series in store()
        for start in range(series.num_steps - LENGTH - HORIZON + 1)
    ]
    return np.stack(windows)[:, :LENGTH], np.stack(windows)[:, LENGTH:]


def test_arrays_are_those_of_the_windows() -> None:
    x, y = to_arrays(feed(), x="load", y="load_target")
    assert np.array_equal(x, expected()[0])
    assert np.array_equal(y, expected()[1])


def test_a_loader_gives_pairs() -> None:
    pairs = PairDataset(feed(), x="load", y="load_target")
    x, y = next(iter(DataLoader(pairs, batch_size=5)))
    assert len(pairs) == len(expected()[0])
    assert torch.equal(x, torch.from_numpy(expected()[0][:5]))
    assert torch.equal(y, torch.from_numpy(expected()[1][:5]))


def test_scikit_learn_and_skorch_fit() -> None:
    linear = pytest.importorskip("sklearn.linear_model")
    x, y = to_arrays(feed(), x="load", y="load_target")
    assert linear.Ridge().fit(x, y).predict(x).shape == y.shape
    skorch = pytest.importorskip("skorch")
    net = skorch.NeuralNetRegressor(torch.nn.Linear(LENGTH, HORIZON), max_epochs=2, train_split=None, verbose=0)
    net.fit(PairDataset(feed(), x="load", y="load_target"), y=None)
    assert len(net.history) == 2

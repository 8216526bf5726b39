"""What is drawn begins the same in each trial, and goes on as if nothing had been drawn meanwhile."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from tests.diagnose.experiments.samples import installed
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from stoker.compare.seeding import draw_each_epoch, kept_seeds, set_seeds
from stoker.diagnose.experiments.workers import Workers


def drawn() -> list[float]:
    return [random.random(), np.random.random(), torch.rand(1).item(), np.random.default_rng().random()]


def test_all_that_is_drawn_begins_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np.random, "default_rng", np.random.default_rng)  # put back in the end
    original = np.random.default_rng
    assert drawn() != drawn()  # without the guard
    with kept_seeds():
        set_seeds()
        first = drawn()
        assert np.random.default_rng().random() != first[-1]  # each generator is another one
        assert np.random.default_rng(5).random() == original(5).random()
        monkeypatch.setattr(np.random, "default_rng", original)
        set_seeds()
        assert drawn() == first


def test_what_is_drawn_meanwhile_does_not_count() -> None:
    with kept_seeds():
        before = [random.random(), np.random.random(), torch.rand(1).item()]
    with kept_seeds():
        with kept_seeds():
            drawn()
        assert [random.random(), np.random.random(), torch.rand(1).item()] == before


@pytest.mark.parametrize("drawing", [True, False])
def test_epochs_with_workers_have_the_order_of_those_without(
    drawing: bool, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    def orders() -> list[list[int]]:
        torch.manual_seed(3)
        loader = DataLoader(TensorDataset(torch.arange(40)), 8, shuffle=True)
        return [[int(one) for (batch,) in loader for one in batch] for _ in range(3)]

    before = orders()
    installed(Workers(1), request)
    if drawing:  # else without the guard
        monkeypatch.setattr(_MultiProcessingDataLoaderIter, "_reset", _MultiProcessingDataLoaderIter._reset)  # put back in the end
        draw_each_epoch()
    after = orders()
    assert after[0] == before[0]
    assert (after == before) == drawing

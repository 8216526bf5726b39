"""Batches are doubled once, however loaders are made."""

from __future__ import annotations

import pytest
import torch
from tests.diagnose.experiments.samples import Pairs, installed
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from stoker.diagnose.experiments.batch import Batch, doubled


def test_two_batches_in_one() -> None:
    batch = {"x": torch.zeros(2, 3), "y": torch.zeros(2)}
    twice = doubled(batch, {"x": torch.ones(2, 3), "y": torch.ones(2)})
    assert twice["y"].tolist() == [0, 0, 1, 1]
    assert twice["x"].shape == (4, 3)
    assert doubled((torch.ones(2), "a"), (torch.ones(2), "b")) is None
    assert doubled((torch.ones(2, 3),), (torch.ones(2, 4),)) is None
    assert doubled((torch.ones(2, 3), torch.ones(7)), (torch.ones(2, 3), torch.ones(7))) is None
    fix = Batch()
    assert len(fix.on([], None, [torch.ones(2), torch.ones(2)])[1]) == 4
    assert fix.used


def test_batches_are_doubled_once_however_loaders_are_made(request: pytest.FixtureRequest) -> None:
    fix = installed(Batch(), request)
    dataset = Pairs()
    loader = DataLoader(dataset, batch_size=6)
    assert len(next(iter(loader))[1]) == 12
    again = DataLoader(dataset, batch_sampler=loader.batch_sampler)
    assert len(next(iter(again))[1]) == 12
    whole = DataLoader(TensorDataset(torch.arange(40)), batch_size=None, sampler=BatchSampler(RandomSampler(range(40)), 5, True))
    assert len(next(iter(whole))[0]) == 10
    assert fix.used


def test_batches_that_the_program_makes_are_not_doubled(request: pytest.FixtureRequest) -> None:
    fix = installed(Batch(), request)
    assert DataLoader(Pairs(), batch_size=None).batch_size is None
    assert not fix.used
    assert "itself" in fix.unused_reason

"""Workers are for samples found by index, and their epochs have the order of those without."""

from __future__ import annotations

import pytest
from tests.diagnose.experiments.samples import Endless, Pairs, installed
from torch.utils.data import DataLoader

from stoker.diagnose.experiments.workers import Workers


def test_workers_are_given_to_loaders_of_numbered_samples_alone(request: pytest.FixtureRequest) -> None:
    fix = installed(Workers(1), request)
    DataLoader(Endless(), batch_size=2)
    assert not fix.used
    assert "IterableDataset" in fix.unused_reason
    loader = DataLoader(Pairs(), 6, num_workers=0)
    assert (loader.num_workers, loader.persistent_workers, fix.used) == (1, True, True)
    fix.remove()
    assert DataLoader(Pairs(), 6).num_workers == 0


def test_no_workers_take_what_only_workers_have_with_them(request: pytest.FixtureRequest) -> None:
    fix = installed(Workers(0), request)
    loader = DataLoader(Pairs(), 6, num_workers=2, persistent_workers=True, prefetch_factor=4)
    assert (loader.num_workers, loader.persistent_workers, loader.prefetch_factor, fix.used) == (0, False, None, True)

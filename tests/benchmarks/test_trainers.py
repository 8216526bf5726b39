"""The benchmark of trainers: the cost of a step is that of steps alone, and weights that differ are told."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from benchmarks.peers import trainers as peers
from benchmarks.train import bench_trainers as bench

CASE = bench.Case(make=bench.Mlp, rows=4, shape=(16, 8), short=2, long=5, has_defaults=False)


@pytest.fixture
def own_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without peers, which take long to import."""
    monkeypatch.setattr(peers, "PEERS", {})


@pytest.mark.usefixtures("own_sides")
def test_ours_ends_with_the_weights_of_the_loops_whatever_brings_the_batches() -> None:
    listed, _ = bench.sides_of(CASE, bench.Listed(CASE))
    loaded, _ = bench.sides_of(CASE, bench.Loaded(CASE))
    assert bench.is_equal(listed, 5) == {"ours": True, "ours, fused": True, "ours with clip, average, log": True}
    assert all(map(torch.equal, listed["ours"](5), loaded["plain"](5)))


@pytest.mark.usefixtures("own_sides")
def test_negative_control_weights_that_differ_are_reported() -> None:
    sides, _ = bench.sides_of(CASE, bench.Listed(CASE))
    sides["plain"] = partial(bench.run_plain, CASE, lambda steps: bench.Listed(CASE)(steps - 1), False)
    assert bench.is_equal(sides, 5)["ours"] is False

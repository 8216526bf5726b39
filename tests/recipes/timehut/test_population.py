"""Populations: K members are K single runs, compaction, averages, dropout, NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from stoker_recipes.timehut.model import initial_weights, kept_positions
from stoker_recipes.timehut.population import dropout_scale, make_population
from stoker_recipes.timehut.settings import make_settings

SMALL: dict[str, Any] = {"hidden": 6, "depth": 4, "width": 10, "batch_size": 4, "updates": 8}
DATA = np.random.default_rng(5).normal(size=(9, 12, 2)).astype(np.float32)
MEMBERS = [
    make_settings("timehut", seed=1, **SMALL),
    make_settings("ts2vec", seed=2, **SMALL),
    make_settings("softclt", seed=1, **SMALL),
]
TARGETS = [None, None, np.random.default_rng(0).uniform(size=(9, 9))]


@pytest.mark.promise("P29")
def test_members_are_single_runs() -> None:
    together = make_population(DATA, MEMBERS, targets=TARGETS)
    losses = together.advance(8)
    for i, (one, target) in enumerate(zip(MEMBERS, TARGETS, strict=True)):
        alone = make_population(DATA, [one], targets=[target])
        assert abs(float(alone.advance(8) - losses[i])) < 1e-5 * abs(float(losses[i]))
        assert float((alone.average() - together.average()[i]).abs().max()) < 1e-5
        assert np.abs(alone.encode(DATA)[0] - together.encode(DATA)[i]).max() < 1e-5


def test_the_average_is_over_all_iterates_and_the_initial_weights() -> None:
    population = make_population(DATA, MEMBERS[:1])
    iterates = [population.weights.detach().clone()]
    for update in range(1, 6):
        population.advance(update)
        iterates.append(population.weights.detach().clone())
    assert torch.allclose(population.average(), torch.stack(iterates).mean(0), atol=1e-6)


def test_left_out_taps_decay_as_the_optimizer_would_have_it() -> None:
    population = make_population(DATA, [make_settings("ts2vec", seed=3, lr=0.1, weight_decay=0.1, **SMALL)])
    population.advance(6)
    first = initial_weights(population.layout.size, 3)
    dropped = torch.ones(len(first), dtype=torch.bool)
    dropped[kept_positions(population.layout)] = False
    assert dropped.any()
    weight = torch.nn.Parameter(first[dropped].clone())
    optimizer, iterates = torch.optim.AdamW([weight], lr=0.1, weight_decay=0.1), [weight.detach().clone()]
    for _ in range(6):
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        iterates.append(weight.detach().clone())
    assert torch.allclose(population.average_whole()[0, dropped], torch.stack(iterates).mean(0), atol=1e-7)


@pytest.mark.promise("P29")
def test_compaction_changes_nothing_for_those_that_stay() -> None:
    whole, cut = (make_population(DATA, MEMBERS, targets=TARGETS) for _ in range(2))
    whole.advance(8)
    cut.advance(3)
    cut.keep([2, 0])
    cut.advance(8)
    assert cut.num_members == 2
    assert [one.method for one in cut.settings] == ["softclt", "timehut"]
    assert float((cut.average() - whole.average()[[2, 0]]).abs().max()) < 1e-5


def test_a_member_that_fails_stays_alone() -> None:
    population = make_population(DATA, MEMBERS, targets=TARGETS)
    with torch.no_grad():
        population.weights[1] = float("nan")
    losses = population.advance(3)
    assert torch.isfinite(losses).tolist() == [True, False, True]
    assert torch.isfinite(population.average()).all(1).tolist() == [True, False, True]


def test_dropout_is_random_and_depends_on_seed_update_and_place() -> None:
    def draw(seed: int, update: int) -> torch.Tensor:
        keys = torch.tensor([seed, seed + 100])
        steps = torch.arange(20)
        where: dict[str, Any] = {"steps": steps, "key": keys, "update": torch.tensor([update]), "length": 24}
        return dropout_scale(torch.Size((2, 16, 20, 64)), torch.float32, **where, rate=0.1)

    first = draw(0, 0)
    assert first.unique().tolist() == pytest.approx([0.0, 1 / 0.9])
    for other in (first, draw(0, 1), draw(1, 0)):
        assert abs(float((other == 0).float().mean()) - 0.1) < 0.01
        assert float((other == 0).float().mean((0, 1, 2)).std()) < 0.03
    for one, other in ((first[0], first[1]), (first, draw(0, 1)), (first, draw(1, 0)), (first[:, 1:], first[:, :-1])):
        both = float(((one == 0) & (other == 0)).float().mean())
        assert abs(both - 0.01) < 0.003  # independent: 0.1 * 0.1
    assert torch.equal(first, draw(0, 0))

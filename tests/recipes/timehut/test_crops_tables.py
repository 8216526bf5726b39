"""Batches from tables: the steps of crops, trimmed or not, and the tables of some members."""

from __future__ import annotations

import numpy as np
import torch

from stoker.recipes.timehut.crops import draw_crops, gather_batch
from stoker.recipes.timehut.population import make_population
from stoker.recipes.timehut.settings import make_settings

DATA = np.arange(9 * 12, dtype=np.float32).reshape(9, 12, 1)
MEMBERS = [make_settings("ts2vec", seed=seed, batch_size=4, updates=5, hidden=4, depth=2, width=6) for seed in (1, 2)]


def test_a_batch_has_the_steps_of_its_crops() -> None:
    tables = make_population(DATA, MEMBERS).tables
    for update in range(5):
        batch = gather_batch(tables, torch.tensor([update]), low=0, high=12, width=12)
        for k, one in enumerate(MEMBERS):
            crops = draw_crops(num_series=9, length=12, batch_size=4, updates=5, seed=one.seed)
            eleft, left, right, eright = crops.bounds[update]
            assert int(batch["length"][k]) == right - left
            for row in range(4):
                begin = crops.start[update, row]
                steps = DATA[crops.rows[update, row], begin + eleft : begin + eright, 0]
                assert batch["x"][k, row, eleft:eright, 0].tolist() == steps.tolist()
            for view, (low, high) in enumerate(((eleft, right), (left, eright))):
                assert batch["crop"][k, view].tolist() == [low <= step < high for step in range(12)]
                assert not (batch["keep"][k, view] & ~batch["crop"][k, view]).any()


def test_a_trimmed_batch_is_a_part_of_the_whole_one() -> None:
    tables = make_population(DATA, MEMBERS[:1]).tables
    eleft, left, right, eright = tables.bounds[2, 0].tolist()
    whole = gather_batch(tables, torch.tensor([2]), low=0, high=12, width=12)
    part = gather_batch(tables, torch.tensor([2]), low=eleft, high=eright, width=right - left)
    assert torch.equal(part["x"], whole["x"][:, :, eleft:eright])
    assert torch.equal(part["keep"], whole["keep"][..., eleft:eright])
    assert int(part["begin"]) == left - eleft


def test_tables_of_some_members() -> None:
    tables = make_population(DATA, MEMBERS).tables
    taken = tables.take(torch.tensor([1]))
    one, other = (gather_batch(each, torch.tensor([3]), low=0, high=12, width=12) for each in (tables, taken))
    assert torch.equal(one["x"][1:], other["x"])
    assert torch.equal(one["tau"][1:], other["tau"])
    assert other["key"].tolist() == [2]

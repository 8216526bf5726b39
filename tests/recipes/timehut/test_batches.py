"""Crops: the authors' draws in the authors' order, and every crop inside its series."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.errors import OptionError
from stoker_recipes.timehut.batches import draw_crops


@pytest.mark.promise("P29")
def test_draws_come_in_the_documented_order() -> None:
    crops = draw_crops(num_series=10, length=24, batch_size=4, updates=7, seed=3)
    random = np.random.RandomState(3)
    for update in range(7):
        length = random.randint(low=2, high=25)
        left = random.randint(25 - length)
        right = left + length
        eleft = random.randint(left + 1)
        eright = random.randint(low=right, high=25)
        offsets = random.randint(low=-eleft, high=24 - eright + 1, size=4)
        assert crops.bounds[update].tolist() == [eleft, left, right, eright]
        assert crops.start[update].tolist() == offsets.tolist()
        assert (crops.mask[update, :, 0, eleft:right] == random.binomial(1, 0.5, size=(4, right - eleft))).all()
        assert (crops.mask[update, :, 1, left:eright] == random.binomial(1, 0.5, size=(4, eright - left))).all()


def test_crops_are_inside_their_series_and_epochs_are_permutations() -> None:
    crops = draw_crops(num_series=10, length=50, batch_size=4, updates=200, seed=1, max_length=20)
    eleft, left, right, eright = crops.bounds.T
    assert (eleft <= left).all()
    assert (left + 2 <= right).all()
    assert (right <= eright).all()
    assert crops.length == 20
    assert (crops.start + eleft[:, None] >= 0).all()
    assert (crops.start + eright[:, None] <= 50).all()
    assert crops.per_epoch == 2
    assert all(len(set(epoch.ravel())) == 8 for epoch in crops.rows.reshape(100, 2, 4))
    assert not crops.mask[0, :, 0, : eleft[0]].any()


def test_a_batch_larger_than_the_data_is_all_of_it() -> None:
    assert draw_crops(num_series=3, length=5, batch_size=8, updates=2, seed=0).rows.shape == (2, 3)
    with pytest.raises(OptionError, match=r"there are 3 series of 1 steps; expected at least one of 2 steps or more\."):
        draw_crops(num_series=3, length=1, batch_size=8, updates=2, seed=0)

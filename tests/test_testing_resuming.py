"""`assert_resumes_exactly` accepts what resumes exactly, and says what is wrong with everything else."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from tests.harness import loaders
from tests.harness.flat_feed import flat_feed

from stoker import Shuffle, Store, Windows
from stoker.testing import assert_resumes_exactly


@pytest.mark.parametrize("loader", [loaders.Loader, loaders.EmptyPassAtEnd, loaders.WritesOver])
def test_a_right_loader_passes(loader: Any) -> None:
    assert_resumes_exactly(loader)


def test_a_right_loader_passes_on_other_numbers_of_ranks() -> None:
    assert_resumes_exactly(loaders.Loader, worlds=(1, 2, 3))


def test_a_feed_passes() -> None:
    store = Store.from_arrays(x=[np.arange(9.0), np.arange(7.0)])
    assert_resumes_exactly(partial(flat_feed, store, Windows(4), batch_size=2, order=Shuffle(1), return_index=True), worlds=(1, 2))


@pytest.mark.promise("P5", control=True)
@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (loaders.Forgetful, "resumed after batch 0 of epoch 0, batch 1 of epoch 0 differs in x, row 0: it is batch 0"),
        (loaders.ForgetsEpoch, "resumed after batch 3 of epoch 0, batch 0 of epoch 1 differs in x, row 0: it is batch 0"),
        (loaders.Ahead, "resumed after batch 0 of epoch 0, batch 1 of epoch 0 differs in x, row 0: it is batch 2 of epoch 0"),
        (loaders.RepeatsAtEnd, "resumed after batch 3 of epoch 0, batch 0 of epoch 1 differs in x, row 0: it is batch 0"),
        (loaders.ResumesOnce, "resumed 2 times, before every batch and twice each time, batch 1 of epoch 0 differs in x"),
        (loaders.ShortEpochAfterResume, "resumed after batch 0 of epoch 0, the epoch ends after 2 batches; expected 3"),
        (loaders.LongEpochAfterResume, "resumed after batch 0 of epoch 0, the epoch continues after the 3 batches that were left"),
    ],
)
def test_a_wrong_loader_is_caught(loader: Any, message: str) -> None:
    with pytest.raises(AssertionError) as caught:
        assert_resumes_exactly(loader)
    assert message in str(caught.value)


def test_an_order_that_depends_on_ranks_cannot_be_resumed_on_others() -> None:
    assert_resumes_exactly(loaders.OrderByRanks, worlds=(2,))
    message = r"resumed after batch 0 of epoch 0 on 2 ranks, the sample of row 0 of batch 0 .* comes as .* of the new run; expected"
    with pytest.raises(AssertionError, match=message):
        assert_resumes_exactly(loaders.OrderByRanks, worlds=(1, 2), cuts=[1])


def test_a_dropped_tail_is_another_number_of_samples_on_other_ranks() -> None:
    with pytest.raises(AssertionError, match=r"on 2 ranks, the epoch ends after \d+ samples; expected \d+"):
        assert_resumes_exactly(loaders.DropsTail, worlds=(1, 2), cuts=[0])

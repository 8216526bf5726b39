"""Converted batches: what they refuse, and that length, epoch and state are those of the feed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.integrations.feeds import feed, store

import stoker
from stoker.errors import OptionError
from stoker.integrations.batches import Batch, ConvertedBatches


class Targets(ConvertedBatches):
    def convert(self, batch: Batch) -> torch.Tensor:
        return batch["load_target"]


def test_a_pass_resumes_at_the_next_batch() -> None:
    whole = list(Targets(feed(order=stoker.Shuffle(seed=1))))
    batches = Targets(feed(order=stoker.Shuffle(seed=1)))
    assert len(batches) == len(whole) == 4
    passing = iter(batches)
    first = [next(passing), next(passing)]
    rest = Targets(feed(order=stoker.Shuffle(seed=1)))
    rest.load_state_dict(batches.state_dict())
    assert all(torch.equal(a, b) for a, b in zip([*first, *rest], whole, strict=True))
    rest.set_epoch(0)
    assert all(torch.equal(a, b) for a, b in zip(rest, whole, strict=True))


@pytest.mark.parametrize(
    ("view", "last_batch", "parameter"),
    [
        (stoker.Windows(4), "drop", "horizon"),
        (stoker.Windows(6, horizon=2, tail="drop"), "pad", "last_batch"),
        (stoker.Windows(6, horizon=2, stride=3), "drop", "tail"),
    ],
    ids=str,
)
def test_feeds_whose_batches_would_be_wrong_are_refused(view: stoker.Windows, last_batch: Any, parameter: str) -> None:
    with pytest.raises(OptionError) as error:
        Targets(stoker.Feed(store(), view, batch_size=2, last_batch=last_batch))
    assert error.value.parameter == parameter

"""The batches of a training: copies of some, whether or not there are always more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stoker.diagnose.loaders import Source, Watched
from stoker.diagnose.steps import MAX_CACHED, Training
from stoker.errors import TrainError


def training_over(iterable: list[torch.Tensor] | Iterator[torch.Tensor]) -> Training:
    training = Training()
    training.watched = Watched(training.sources, Source(iterable, None), iter(iterable), 0)
    return training


def batches(number: int) -> list[torch.Tensor]:
    return [torch.full((3,), float(one)) for one in range(number)]


def test_a_pass_that_ends_is_begun_anew() -> None:
    training = training_over(batches(5))
    training.collect()
    assert [int(one[0]) for one in training.batches] == [number % 5 for number in range(MAX_CACHED)]


def test_what_cannot_be_begun_anew_is_not_used_up() -> None:
    training = training_over(iter(batches(5)))
    for one in batches(2):
        training.keep(one)
    training.collect()
    assert len(training.batches) == 2
    assert training.watched is not None
    assert int(next(training.watched.iterator)[0]) == 0


def test_no_more_than_there_is_room_for_is_kept() -> None:
    training = training_over(iter(batches(1)))
    for one in batches(MAX_CACHED + 3):
        training.keep(one)
    assert len(training.batches) == len(training.ledger.batch_bytes) == MAX_CACHED


def test_without_any_batch_it_is_told() -> None:
    training = training_over(iter(batches(0)))
    with pytest.raises(TrainError, match="came to an end"):
        training.collect()

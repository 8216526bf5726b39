"""The cached batches of a session, whether or not there are always more batches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stoker.diagnose.loops import Source, WatchedIterator
from stoker.diagnose.session import MAX_CACHED, Session
from stoker.diagnose.windows import measure_all
from stoker.errors import TrainError


def session_over(iterable: list[torch.Tensor] | Iterator[torch.Tensor]) -> Session:
    session = Session(measure_all, on_done=lambda: None)
    session.watched = WatchedIterator(session.sources, Source(iterable, None), iter(iterable), 0)
    return session


def batches(number: int) -> list[torch.Tensor]:
    return [torch.full((3,), float(one)) for one in range(number)]


def test_a_pass_that_ends_is_begun_again() -> None:
    session = session_over(batches(5))
    session.cache_batches()
    assert [int(one[0]) for one in session.batches] == [number % 5 for number in range(MAX_CACHED)]


def test_what_cannot_be_begun_again_is_not_used_up() -> None:
    session = session_over(iter(batches(5)))
    for one in batches(2):
        session.cache_batch(one)
    session.cache_batches()
    assert len(session.batches) == 2
    assert session.watched is not None
    assert int(next(session.watched.iterator)[0]) == 0


def test_without_any_batch_it_is_reported() -> None:
    session = session_over(iter(batches(0)))
    with pytest.raises(TrainError, match="came to an end"):
        session.cache_batches()

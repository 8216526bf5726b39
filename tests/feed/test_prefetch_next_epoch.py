"""The first batches of the next epoch, made while the last ones of this epoch are used: the same batches, and nothing left behind."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness.flat_feed import flat_feed
from tests.harness.threads import feed_threads, wait_until
from torch import nn

import stoker
from stoker.train import Trainer
from stoker.train.callbacks import CallbackReport

pytestmark = pytest.mark.usefixtures("no_thread_left")
BATCHES = 10


class Counted:
    """A transform that counts the batches it was called for."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()

    def __call__(self, arrays: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            self.calls += 1
        return arrays


def feed_of(transform: Counted | None = None, **options: Any) -> stoker.Feed:
    store = stoker.Store.from_arrays(x=[np.arange(4.0 * BATCHES, dtype=np.float32)])
    return flat_feed(store, stoker.Segments(1), batch_size=4, order=stoker.Shuffle(3), transform=transform, **options)


def epoch_of(feed: stoker.Feed, *, ahead: bool) -> list[list[float]]:
    """The batches of an epoch; with `ahead` the next one is begun before the last batch."""
    found = []
    for batch in feed:
        found.append(batch["x"].flatten().tolist())
        if ahead and len(found) == BATCHES - 1:
            feed.prefetch_next_epoch()
    return found


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_the_batches_are_those_of_plain_epochs(threads: int) -> None:
    plain, ahead = feed_of(threads=threads), feed_of(threads=threads)
    for _ in range(3):
        assert epoch_of(ahead, ahead=True) == epoch_of(plain, ahead=False)
        assert ahead.state_dict() == plain.state_dict()
    ahead.drop_prefetched_epoch()


def test_first_batches_are_made_before_the_epoch_begins() -> None:
    transform = Counted()
    feed = feed_of(transform, threads=2, prefetch=3)
    epoch_of(feed, ahead=True)
    assert wait_until(lambda: transform.calls == BATCHES + 3)
    epoch_of(feed, ahead=False)
    assert transform.calls == 2 * BATCHES


@pytest.mark.parametrize(
    "move", [lambda feed: feed.set_epoch(7), lambda feed: feed.load_state_dict({**feed.state_dict(), "position": 8})]
)
def test_another_position_gives_its_own_batches(move: Callable[[stoker.Feed], None]) -> None:
    plain, ahead = feed_of(threads=2), feed_of(threads=2)
    for feed in (plain, ahead):
        epoch_of(feed, ahead=feed is ahead)
        move(feed)
    assert epoch_of(ahead, ahead=False) == epoch_of(plain, ahead=False)


@pytest.mark.parametrize("end", ["drop", "close", "garbage"])
def test_an_epoch_that_does_not_come_ends_with_its_threads(end: str) -> None:
    feed = feed_of(threads=2)
    epoch_of(feed, ahead=True)
    assert feed_threads()
    if end == "drop":
        feed.drop_prefetched_epoch()
    elif end == "close":
        feed.close()
    del feed


def test_a_forked_process_makes_its_own_batches() -> None:
    feed = feed_of(threads=2)
    epoch_of(feed, ahead=True)
    expected = feed_of(threads=0)
    expected.set_epoch(1)
    wanted = epoch_of(expected, ahead=False)
    child = os.fork()
    if not child:
        os._exit(0 if epoch_of(feed, ahead=False) == wanted else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    feed.close()


class NotesAhead:
    """After each epoch: how many batches are made in the end, before the next epoch asks for one."""

    def __init__(self, transform: Counted, expected: list[int], *, stop: bool = False) -> None:
        self.transform, self.expected, self.stop = transform, expected, stop
        self.seen: list[bool] = []

    def on_epoch_end(self, report: CallbackReport) -> None:
        expected = self.expected[len(self.seen)]
        self.seen.append(wait_until(lambda: self.transform.calls == expected))
        if self.stop:
            report.stop()


def fit(transform: Counted, noted: NotesAhead, epochs: int) -> Any:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return model(batch["x"].reshape(-1, 1)).square().mean()

    return Trainer(model, loss, optimizer, callbacks=[noted]).fit(feed_of(transform, threads=2, prefetch=2), epochs=epochs)


def test_a_trainer_begins_each_epoch_but_the_first() -> None:
    transform = Counted()
    noted = NotesAhead(transform, [BATCHES + 2, 2 * BATCHES + 2, 3 * BATCHES])
    fit(transform, noted, epochs=3)
    assert noted.seen == [True, True, True]
    assert transform.calls == 3 * BATCHES

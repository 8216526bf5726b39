"""Stream: what a trainer asks of its batches, of a feed and of every other iterable."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tests.harness.flat_feed import flat_feed
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset

from stoker import Feed, Shuffle, Store, Windows
from stoker.train.stream import Stream

DATA = TensorDataset(torch.arange(20.0).reshape(10, 2))


def feed() -> Feed:
    store = Store.from_arrays(x=[np.arange(20.0)])
    return flat_feed(store, Windows(11), batch_size=3, order=Shuffle(3), last_batch="short", return_index=True)


class Stateful:
    """Like torchdata's StatefulDataLoader."""

    def __init__(self) -> None:
        self.epoch, self.taken = 0, 0

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[torch.Tensor]:
        while self.taken < 4:
            self.taken += 1
            yield torch.full((3,), 10.0 * self.epoch + self.taken)
        self.epoch, self.taken = self.epoch + 1, 0

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.taken = state["epoch"], state["taken"]


class Endless(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.arange(12.0))


def generator() -> Iterator[torch.Tensor]:
    yield from torch.arange(12.0).split(3)


MAKERS = {
    "feed": feed,
    "DataLoader": partial(DataLoader, DATA, batch_size=3),
    "DataLoader of an iterable dataset": lambda: DataLoader(Endless(), batch_size=3),
    "list": lambda: list(torch.arange(12.0).split(3)),
    "generator": generator,
    "stateful": Stateful,
}


@pytest.fixture(params=MAKERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stream(name: str) -> Stream:
    return Stream(MAKERS[name]())  # type: ignore[operator]


def first_values(batches: Any) -> list[Any]:
    return [(batch["sample"] if isinstance(batch, dict) else torch.as_tensor(batch[0])).tolist() for batch in batches]


def test_a_stream_gives_as_many_batches_as_it_says(stream: Stream, name: str) -> None:
    stated = stream.num_batches
    assert (stated is None) == (name in ("generator", "DataLoader of an iterable dataset"))
    assert len(list(stream.passes(iter))) == (4 if stated is None else stated) == 4


def test_a_stream_resumes_by_its_state_or_by_skipping(stream: Stream, name: str) -> None:
    assert stream.keeps_state == (name in ("feed", "stateful"))
    begun = stream.state()
    assert (begun is None) == (not stream.keeps_state)
    whole = first_values(Stream(MAKERS[name]()).passes(iter))  # type: ignore[operator]
    passed = stream.passes(iter)
    taken = first_values([next(passed), next(passed)])
    again = Stream(MAKERS[name]())  # type: ignore[operator]
    again.resume(stream.state(), taken=2)
    assert taken + first_values(again.passes(iter)) == whole
    assert stream.state_after(begun, 2) in (stream.state(), None)


def test_reading_ahead_changes_nothing(stream: Stream, name: str) -> None:
    whole = first_values(Stream(MAKERS[name]()).passes(iter))  # type: ignore[operator]
    ahead = first_values(stream.peek(2))
    assert ahead == whole[: 2 if stream.keeps_state else 1]
    assert first_values(stream.passes(iter)) == whole


def test_a_stream_says_where_batches_come_from_or_only_which(stream: Stream, name: str) -> None:
    blamed = stream.blame(stream.state(), 0, 1)
    if name == "feed":
        assert blamed.startswith("batch 0 of the pass: samples ")
        assert blamed.endswith("of <memory>")
    else:
        assert blamed == "batch 0 of the pass"


def test_a_set_epoch_reaches_the_sampler() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=1, rank=0)
    Stream(DataLoader(DATA, batch_size=3, sampler=sampler)).set_epoch(7)
    assert sampler.epoch == 7

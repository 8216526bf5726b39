"""BatchSource: the contract between trainer and feed, held by a feed and by the adapter of every other iterable."""

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
from stoker.errors import FeedError
from stoker.feed.protocol import BatchSource, as_batch_source, copy_first_batches

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
def source(name: str) -> BatchSource:
    return as_batch_source(MAKERS[name]())  # type: ignore[operator]


def first_values(batches: Any) -> list[Any]:
    return [(batch["sample"] if isinstance(batch, dict) else torch.as_tensor(batch[0])).tolist() for batch in batches]


def test_a_source_gives_as_many_batches_as_it_says(source: BatchSource, name: str) -> None:
    stated = source.num_batches
    assert (stated is None) == (name in ("generator", "DataLoader of an iterable dataset"))
    assert len(list(source)) == (4 if stated is None else stated) == 4


def test_a_source_resumes_exactly_or_says_that_it_cannot(source: BatchSource, name: str) -> None:
    assert source.keeps_state == (name in ("feed", "stateful"))
    if not source.keeps_state:
        assert source.state_dict() is None
        with pytest.raises(FeedError, match=r"has no state_dict\(\) and load_state_dict\(\), so it cannot be resumed"):
            source.load_state_dict({})
        return
    begun, whole = source.state_dict(), first_values(source)
    source.load_state_dict(begun)
    passed = iter(source)
    taken = first_values([next(passed), next(passed)])
    state = source.state_dict()
    again = as_batch_source(MAKERS[name]())  # type: ignore[operator]
    again.load_state_dict(state)
    assert taken + first_values(again) == whole
    assert source.state_after(begun, 2) in (state, None)


def test_reading_ahead_and_back_changes_nothing(source: BatchSource, name: str) -> None:
    if not source.keeps_state:
        pytest.skip("only a source with a state can be put back")
    state = source.state_dict()
    ahead = copy_first_batches(source, 2)
    source.load_state_dict(state)
    assert first_values(ahead) == first_values(source)[:2]


def test_a_source_says_where_batches_come_from_or_nothing(source: BatchSource, name: str) -> None:
    found = source.origin(source.state_dict(), 0, 1)
    if name == "feed":
        assert found is not None
        assert found.startswith("samples ")
        assert found.endswith("of <memory>")
    else:
        assert found is None


def test_a_set_epoch_reaches_the_sampler() -> None:
    sampler: DistributedSampler[Any] = DistributedSampler(DATA, num_replicas=1, rank=0)
    as_batch_source(DataLoader(DATA, batch_size=3, sampler=sampler)).set_epoch(7)
    assert sampler.epoch == 7

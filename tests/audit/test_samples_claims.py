"""What loaders say of themselves is what they are held to: samplers of torch, and feeds with their orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from tests.audit.samples import ALL, DATA, NUM, batches_of, of, passed
from tests.harness.flat_feed import flat_feed
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from stoker import BlockShuffle, ByLength, Feed, Sequences, Sequential, Shuffle, Store, Windows, audit


def test_what_a_sampler_says_is_believed() -> None:
    dropped = audit(DataLoader(DATA, batch_size=48, shuffle=True, drop_last=True))
    assert (dropped.ok, of(dropped, "never seen").severity, of(dropped, "never seen").count) == (True, "note", NUM % 48)
    drawn = audit(DataLoader(DATA, batch_size=16, sampler=RandomSampler(DATA, replacement=True)))
    assert drawn.ok
    assert of(drawn, "seen twice").severity == of(drawn, "never seen").severity == "note"
    assert not audit(DataLoader(DATA, batch_size=16, sampler=RandomSampler(DATA, replacement=True)), once=True).ok
    assert audit(DataLoader(DATA, batch_size=16, sampler=WeightedRandomSampler(torch.rand(NUM).tolist(), NUM))).ok
    subset = audit(DataLoader(DATA, batch_size=16, sampler=SubsetRandomSampler(range(100, 300))))
    assert not subset.findings
    assert "Each of 200 samples came." in of(subset, "never seen").text


def test_the_epoch_of_a_sampler_is_set_and_put_back() -> None:
    sampler = DistributedSampler(DATA, 1, 0)
    sampler.set_epoch(7)
    assert audit(DataLoader(DATA, batch_size=16, sampler=sampler), epochs=3).ok
    assert sampler.epoch == 7


STORE = Store.from_arrays(
    lengths=np.arange(20, 60), close=np.random.default_rng(0).normal(size=int(np.arange(20, 60).sum())).astype("f4")
)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("order", [Shuffle(3), Sequential(), BlockShuffle(3), ByLength(3)], ids=lambda order: type(order).__name__)
def test_a_feed_is_clean(order: Any, threads: int) -> None:
    feed = flat_feed(STORE, Windows(8, horizon=1), batch_size=32, order=order, threads=threads)
    found = audit(feed, epochs=2)
    assert found.ok, found
    assert passed(found) >= set(ALL) - {"order", "same order"}
    assert feed.epoch == 0


@pytest.mark.parametrize("layout", ["padded", "packed"])
def test_sequences_of_a_feed_are_clean(layout: Any) -> None:
    def feed(order: Any) -> Feed:
        return Feed(STORE, Sequences(64, layout=layout), batch_size=8, order=order)

    found = audit(feed(Shuffle(1)), reference=feed(Sequential()), epochs=2)
    assert found.ok
    assert passed(found) >= {"seen twice", "never seen", "foreign rows", "same order", "reused memory"}


def test_rows_that_lose_their_mask_are_found() -> None:
    feed = Feed(STORE, Windows(8), batch_size=32, order=Shuffle(0), last_batch="pad")

    class Careless:
        dataset = feed.dataset

        def __iter__(self) -> Iterator[Any]:
            return ({name: tensor for name, tensor in batch.items() if name != "valid"} for batch in feed)

    assert of(audit(Careless()), "foreign rows").count == -feed.num_samples % 32


def test_a_loader_that_makes_something_else_of_its_dataset_has_no_reference() -> None:
    class Loader:
        dataset = DATA

        def __iter__(self) -> Iterator[Any]:
            return ({"sum": x.sum(dim=(1, 2))} for x, _ in batches_of(torch.randperm(NUM)))

    found = audit(Loader(), epochs=2)
    assert found.ok
    assert "Samples cannot be found in the reference: 'sum' is not in the reference." in found.basis
    assert passed(found) == {"seen twice", "same order", "reused memory"}

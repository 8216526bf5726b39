"""Torch's own `DataLoader` over the samples of a feed: its options decide the order; batches are those of a direct gather."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from tests.feed.ecosystem import assert_same, ragged, window_feed
from tests.harness.flat_feed import flat_feed
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    RandomSampler,
    Subset,
    WeightedRandomSampler,
)

import stoker
from stoker.feed.adapters import SampleDataset

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]
ALL = list(range(18))


@cache
def samples() -> SampleDataset:
    return window_feed().as_dataset()


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seen(loader: Any) -> list[int]:
    """The numbers of the samples, after a look at every batch."""
    numbers: list[int] = []
    for batch in loader:
        assert_same(batch, samples()[batch["sample"]])
        numbers += batch["sample"].tolist()
    return numbers


@pytest.mark.parametrize("collate", [SampleDataset.collate, None], ids=["collate", "default_collate"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"batch_size": 4}, ALL),
        ({"batch_size": 4, "drop_last": True}, ALL[:16]),
        ({"batch_size": 5, "shuffle": True}, set(ALL)),
        ({"batch_sampler": BatchSampler(RandomSampler(ALL, generator=drawn(1)), 3, drop_last=False)}, set(ALL)),
        ({"batch_size": 4, "sampler": WeightedRandomSampler([1.0] * len(ALL), 9, generator=drawn())}, 9),
    ],
    ids=["in-order", "drop-last", "shuffle", "batch-sampler", "weighted"],
)
def test_a_loader_yields_what_a_gather_yields(options: dict[str, Any], expected: Any, workers: int, collate: Any) -> None:
    """In this order (a list), each once in another order (a set), or so many (a number)."""
    context = "fork" if workers else None
    loader = DataLoader(samples(), num_workers=workers, collate_fn=collate, multiprocessing_context=context, **options)
    numbers = seen(loader)
    assert expected in (numbers, set(numbers), len(numbers))
    assert isinstance(expected, list) or numbers != ALL
    assert isinstance(expected, int) or len(numbers) == len(expected)


def test_persistent_workers_shuffle_again_each_epoch() -> None:
    workers: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = DataLoader(samples(), batch_size=4, shuffle=True, generator=drawn(), collate_fn=SampleDataset.collate, **workers)
    first, second = seen(loader), seen(loader)
    assert first != second
    assert sorted(first) == sorted(second) == ALL


def test_sequences_of_different_lengths_need_the_collate_of_the_dataset() -> None:
    dataset = flat_feed(ragged(), stoker.Sequences(16), batch_size=2, return_index=True).as_dataset()
    parts = ConcatDataset([Subset(dataset, [0, 1, 2]), Subset(dataset, [3, 4, 5])])
    for batch in DataLoader(parts, batch_size=2, collate_fn=dataset.collate):
        assert_same(batch, dataset[batch["sample"]])
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(DataLoader(parts, batch_size=4))

"""With `compat="mostlyai"` the tensors are those of its loops, name by name and number by number."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from benchmarks.before.mostlyai_sequences import BatchCollator, pad_by_group, pad_by_indices

import stoker
from stoker_recipes.tabular import pad_sequences


def events(rng: np.random.Generator, num_contexts: int, longest: int) -> pd.DataFrame:
    lengths = rng.integers(1, longest + 1, num_contexts)
    keys = rng.permutation(np.repeat(rng.permutation(10 * num_contexts)[:num_contexts], lengths))
    return pd.DataFrame(
        {
            "user": keys,
            "tgt:/item__cat": rng.integers(0, 100, len(keys)).astype(np.int8),
            "tgt:/price__E1": rng.integers(0, 10, len(keys)),
            "tgt:/score__bin": rng.integers(0, 10, len(keys)) + 0.75,
        }
    )


def check(frame: pd.DataFrame, max_length: int) -> dict[str, torch.Tensor]:
    columns = [column for column in frame.columns if column.startswith("tgt:")]
    found = dict(pad_sequences(frame, key="user", columns=columns, max_length=max_length, compat="mostlyai"))
    for loop in (pad_by_group, pad_by_indices):
        expected = loop(frame, "user", columns, max_length)
        assert list(found) == list(expected)
        for name, tensor in expected.items():
            assert found[name].dtype == torch.int64
            assert torch.equal(found[name], tensor), name
    return found


@pytest.mark.promise("P11")
@pytest.mark.parametrize("max_length", [1, 7, 99, 100, 250])
def test_they_equal_the_loops(rng: np.random.Generator, max_length: int) -> None:
    found = check(events(rng, 40, 30), max_length)
    assert ("tgt:/__sidx_E0" in found) == (max_length >= 100)


@pytest.mark.parametrize(
    "keys",
    [
        pd.Series(["b", "a", "b", "c", "a"]),
        pd.Series(["b", None, "b", "c", None, "a"]),
        pd.Series([2.5, np.nan, 1.0, 2.5, np.nan]),
        pd.Series([None, None, 1.0]),
        pd.Series([None, None], dtype=object),
        pd.Series(pd.Categorical(["b", "a", "b"], categories=["a", "b", "z"])),
        pd.Series(pd.Categorical(["b", None, "a", "b"])),
        pd.Series(pd.array([5, None, 3, 5], dtype="Int64")),
        pd.Series(pd.to_datetime(["2024-01-02", None, "2024-01-01", "2024-01-02"])),
        pd.Series(np.empty(0, dtype=np.int64)),
    ],
)
def test_keys_of_pandas_and_missing_ones(keys: Any) -> None:
    frame = pd.DataFrame({"user": keys, "tgt:/v__cat": np.arange(1, len(keys) + 1)})
    check(frame, 3)


def test_packed_they_are_the_same_without_padding(rng: np.random.Generator) -> None:
    frame = events(rng, 20, 15)
    options: dict[str, Any] = {"key": "user", "max_length": 9, "compat": "mostlyai"}
    padded, packed = pad_sequences(frame, **options), pad_sequences(frame, layout="packed", **options)
    assert list(padded) == list(packed)
    bounds = packed.cu_seqlens.tolist()
    assert np.diff(bounds).tolist() == [length + 1 for length in packed.lengths.tolist()]
    for name in padded:
        for number, (start, stop) in enumerate(pairwise(bounds)):
            assert torch.equal(packed[name][start:stop], padded[name][number, : stop - start, 0]), name


@pytest.mark.promise("P11")
@pytest.mark.parametrize("window", [None, 100])
def test_a_feed_over_the_store_gives_the_batches_of_the_collator(rng: np.random.Generator, window: int | None) -> None:
    """Reshuffled every epoch, and equal for the same order."""
    store = pad_sequences(events(rng, 50, 30), key="user", max_length=60, compat="mostlyai", layout="packed").store(key="user")
    columns = [name for name in store.schema if name.startswith("tgt:")]
    lists = [{name: store[number][name].tolist() for name in columns} for number in range(len(store))]
    feed = stoker.Feed(
        store,
        stoker.Sequences(101),
        batch_size=16,
        order=stoker.Shuffle(3),
        columns=columns,
        returns=stoker.feed.Returns(index=True, masks=False),
        last_batch="short",
    )
    collate = BatchCollator(window)
    orders = []
    for _ in range(2):
        numbers: list[int] = []
        for batch in feed:
            chosen = batch["sample"].tolist()
            expected = collate([lists[number] for number in chosen])
            for name, tensor in expected.items():
                assert torch.equal(batch[name].unsqueeze(-1), tensor), name
            numbers += chosen
        assert sorted(numbers) == list(range(50))
        orders.append(numbers)
    assert orders[0] != orders[1]

"""Random windows of long sequences: a function of (seed, epoch, sample), the same by every residency and after a resume."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.feed.twin import assert_same_batch
from tests.harness import num_examples
from tests.harness.flat_feed import flat_feed
from tests.sampling.twins import derive, epoch_key

from stoker import ByLength, Feed, Sequences, Sequential, Shuffle, Store, split
from stoker.testing import assert_exactly_once, assert_resumes_exactly

pytestmark = pytest.mark.usefixtures("poisoned")

PLACES = 20
LENGTHS = st.lists(st.integers(0, 30), min_size=1, max_size=8) | st.integers(1, 30).map(lambda length: [length] * 4)


def make_store(lengths: Any = (3, 40, 0, 25, 7, 19)) -> Store:
    return Store.from_arrays(lengths=np.array(lengths, dtype=np.int64), x=np.arange(sum(lengths), dtype=np.float64))


def expected(store: Store, number: int, *, seed: int, epoch: int, most: int) -> list[float]:
    values: list[float] = store[number]["x"].tolist()
    start = derive(epoch_key(seed, epoch, PLACES), number) % (max(len(values) - most, 0) + 1)
    return values[start : start + most]


@settings(deadline=None, max_examples=num_examples(40))
@given(LENGTHS, st.integers(1, 12), st.sampled_from(["host", "device"]), st.booleans(), st.integers(0, 9))
def test_steps_are_those_of_the_twin(lengths: list[int], most: int, residency: str, packed: bool, seed: int) -> None:
    store, view = make_store(lengths), Sequences(most, keep="random", layout="packed" if packed else "padded")
    feed = flat_feed(store, view, batch_size=3, order=Shuffle(seed), residency=residency, return_index=True)
    for epoch in range(2):
        for batch in feed:
            found = []
            for row, number in enumerate(batch["sample"].tolist()):
                if packed:
                    found.append(batch["x"][batch["cu_seqlens"][row] : batch["cu_seqlens"][row + 1]].tolist())
                else:
                    found.append(batch["x"][row, : batch["lengths"][row]].tolist())
                assert found[-1] == (expected(store, number, seed=seed, epoch=epoch, most=most) if number >= 0 else [])


def test_every_start_comes_about_equally_often() -> None:
    feed = Feed(make_store([20]), Sequences(16, keep="random"), batch_size=1, order=Shuffle(0))
    starts = Counter(int(batch["x"][0, 0]) for _ in range(1000) for batch in feed)
    assert starts.keys() == set(range(5))
    assert max(starts.values()) < 260


@pytest.mark.promise("P5")
@pytest.mark.parametrize("order", [Shuffle(2), ByLength(2, group=2), Sequential()], ids=str)
def test_resumes_exactly_and_each_sample_comes_once(order: Any) -> None:
    make = partial(flat_feed, make_store(), Sequences(5, keep="random"), batch_size=2, order=order, return_index=True)
    assert_resumes_exactly(make, worlds=(1, 2))
    assert_exactly_once(make, worlds=(1, 2, 3))


def test_streams_and_captured_batches_have_the_same_steps(tmp_path: Path) -> None:
    view = Sequences(5, keep="random", buckets=(5,))
    stored = make_store().save(tmp_path / "store")
    host, stream, device = (
        flat_feed(stored, view, batch_size=2, order=Shuffle(1), residency=residency) for residency in ("host", "stream", "device")
    )
    captured = device.captured()
    for _ in range(2):
        for a, b, c in zip(host, stream, captured, strict=True):
            assert_same_batch(a, b)
            assert_same_batch(a, c)


def test_a_subset_draws_as_the_whole_view_does() -> None:
    """What is drawn depends on the series, not on its place in the subset."""
    store, view = make_store([30] * 12), Sequences(4, keep="random")
    part = split.grouped(store, view, fractions=(0.5, 0.5)).valid
    whole = {int(row[0]) // 30: row.tolist() for batch in Feed(store, view, batch_size=12) for row in batch["x"]}
    for batch in Feed(store, view, batch_size=1, subset=part):
        row = batch["x"][0]
        assert whole[int(row[0]) // 30] == row.tolist()

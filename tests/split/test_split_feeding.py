"""Feeds of a subset: its samples and no others, with every law of a feed."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.flat_feed import flat_feed
from tests.laws.test_feed_laws import ORDERS
from tests.split import twin
from tests.split.stores import plain

import stoker
from stoker import Feed, Segments, Sequences, Shuffle, Store, Windows
from stoker.errors import FeedError
from stoker.split import Split, chronological, given, grouped, purged
from stoker.testing import assert_exactly_once, assert_resumes_exactly

pytestmark = pytest.mark.promise("P16")

LENGTHS = (40, 0, 90, 3, 25, 61)
SPLITS: dict[str, tuple[Any, Any]] = {
    "windows": (Windows(5, stride=2, horizon=1), chronological),
    "segments": (Segments(4), chronological),
    "folds": (Windows(4, shift=1), lambda store, view: purged(store, view, folds=3)[1]),
    "series": (Windows(6, tail="drop"), partial(grouped, fractions=(0.5, 0.5), seed=3)),
    "sequences": (Sequences(9), partial(grouped, fractions=(0.5, 0.5), seed=3)),
    "packed": (Sequences(9, layout="packed"), partial(grouped, fractions=(0.5, 0.5), seed=3)),
}


def split_of(kind: str) -> tuple[Store, Any, Split]:
    view, make = SPLITS[kind]
    store = plain(LENGTHS)
    return store, view, make(store, view)


@pytest.mark.parametrize("kind", SPLITS)
def test_a_feed_has_the_samples_of_its_part(kind: str) -> None:
    store, view, split = split_of(kind)
    whole = Feed(store, view, batch_size=1, last_batch="short")
    every = [batch["x"].reshape(-1).tolist() for batch in whole]
    for name, subset in split.subsets.items():
        feed = Feed(store, view, subset=subset, batch_size=1, last_batch="short")
        found = [batch["x"].reshape(-1).tolist() for batch in feed]
        assert found == [every[number] for number in twin.numbers_of(split)[name]]
        assert feed.num_samples == len(subset) == len(found)
        assert f"the {name} subset of a {split.kind} split of <memory>: {len(subset)} of {whole.num_samples} samples." in str(feed)


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.kind)
@pytest.mark.parametrize("kind", ["windows", "folds", "sequences"])
def test_every_sample_of_a_part_once(kind: str, order: Any) -> None:
    store, view, split = split_of(kind)
    for residency in ("host", "device"):
        make = partial(flat_feed, store, view, subset=split.train, batch_size=3, order=order, residency=residency)
        assert_exactly_once(make)
        assert_exactly_once(partial(make, return_index=True, threads=2))


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.kind)
def test_a_feed_of_a_part_resumes_exactly(order: Any) -> None:
    store, view, split = split_of("folds")
    make = partial(flat_feed, store, view, subset=split.train, batch_size=16, order=order, return_index=True)
    assert_resumes_exactly(make, worlds=(1, 2))


def test_a_state_belongs_to_its_part() -> None:
    store, view, split = split_of("windows")
    state = Feed(store, view, subset=split.train, batch_size=4).state_dict()
    Feed(store, view, subset=SPLITS["windows"][1](store, view).train, batch_size=4).load_state_dict(state)
    moved = given(store, view, {"train": np.array(twin.numbers_of(split)["train"]) + 1}).train
    assert len(moved) == len(split.train)
    for other in (None, split.valid, moved):
        with pytest.raises(FeedError, match="the state was saved"):
            Feed(store, view, subset=other, batch_size=4).load_state_dict(state)


def test_on_disk_in_a_stream_and_in_other_processes(tmp_path: Path) -> None:
    store = plain(LENGTHS).save(tmp_path / "store")
    view = Windows(5, stride=2, horizon=1)
    split = chronological(store, view)
    make = partial(flat_feed, store, view, subset=split.train, batch_size=4, order=stoker.BlockShuffle(block=3, window=12))
    assert_exactly_once(partial(make, residency="stream", return_index=True))
    dataset = make().as_dataset()
    again = pickle.loads(pickle.dumps(dataset))
    assert len(again) == len(split.train)
    assert again[len(again) - 1]["x"].tolist() == dataset[len(again) - 1]["x"].tolist()


def test_whole_series_may_be_normalized() -> None:
    store, view, split = split_of("series")
    batch = next(iter(Feed(store, view, subset=split.train, batch_size=2, normalize="zero", order=Shuffle())))
    assert batch["x"].isfinite().all()

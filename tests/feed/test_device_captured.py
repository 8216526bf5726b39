"""Captured batches without a GPU: the same steps without the graph, so that loops written for one run anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Segments, Sequences, Shuffle, Store, Windows
from stoker.testing import Content, content_of, difference

VIEWS = [Windows(4), Windows(4, shift=1), Segments(4, tail="drop"), Sequences(6, buckets=(6,))]


def make(view: Any, **options: Any) -> Feed:
    rng = np.random.default_rng(0)
    store = Store.from_arrays(lengths=[9, 0, 5, 30, 1], x=rng.normal(size=45), y=np.arange(5.0))
    columns = ["x", "y"]
    given = {"batch_size": 4, "residency": "device", "order": Shuffle(), "columns": columns, **options}
    return flat_feed(store, view, **given)


def contents(batches: Any) -> list[Content]:
    return [content_of(dict(sorted(batch.items()))) for batch in batches]


@pytest.mark.parametrize("last", ["pad", "drop"])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_captured_batches_are_those_of_the_feed(view: Any, last: str) -> None:
    options: dict[str, Any] = {"last_batch": last, "return_index": True, "normalize": "zero"}
    captured, feed = make(view, **options).captured(), make(view, **options)
    for _ in range(3):
        found, expected = contents(captured), contents(feed)
        assert len(found) == len(expected) > 0
        assert [difference(a, b) for a, b in zip(found, expected, strict=True)] == [None] * len(found)


def test_the_tensors_of_a_batch_stay_where_they_are() -> None:
    captured = make(Windows(4)).captured()
    assert len({batch["x"].data_ptr() for _ in range(2) for batch in captured}) == 1


def test_a_state_counts_what_was_handed_out() -> None:
    feed = make(Windows(4), return_index=True)
    whole = [batch["sample"].tolist() for batch in make(Windows(4), return_index=True)]
    for number, _ in enumerate(feed.captured()):
        state = feed.state_dict()
        rest = make(Windows(4), return_index=True)
        rest.load_state_dict(state)
        if number + 1 < len(whole):
            assert [batch["sample"].tolist() for batch in rest.captured()] == whole[number + 1 :]
    assert (feed.state_dict()["epoch"], feed.state_dict()["position"]) == (1, 0)


def test_what_is_left_of_an_epoch_may_be_less_than_a_batch() -> None:
    feed = make(Windows(4), last_batch="drop")
    feed.load_state_dict({**feed.state_dict(), "position": feed.num_samples - 1})
    captured = feed.captured()
    assert list(captured) == []
    assert feed.epoch == 1
    assert len(list(captured)) == len(feed)

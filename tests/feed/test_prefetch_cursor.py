"""The cursor: what a state must say to be taken, and the sentence for each that says something else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.harness.flat_feed import flat_feed

from stoker import BlockShuffle, ByLength, Feed, Segments, Sequences, Shuffle, Store, Weighted, Windows
from stoker.errors import FeedError, OptionError
from stoker.feed.prefetch import Cursor, check_state

STATE = {"seed": 7, "epoch": 3, "position": 40, "samples": 100, "feed": "0123abcd"}


def check(**changes: Any) -> tuple[int, Cursor, dict[str, int]]:
    state = {key: value for key, value in {**STATE, **changes}.items() if value is not None}
    return check_state(state, num_positions=100, fingerprint="0123abcd")


def test_a_state_becomes_seed_cursor_and_choices() -> None:
    assert check() == (7, Cursor(3, 40), {})
    assert check(block=4, window=400) == (7, Cursor(3, 40), {"block": 4, "window": 400})
    assert check(position=100)[1] == Cursor(3, 100)


def feed(view: Any = None, lengths: tuple[int, ...] = (30, 12, 7), **options: Any) -> Feed:
    store = Store.from_arrays(x=[np.arange(float(size)) for size in lengths])
    return flat_feed(store, view or Windows(4), **{"batch_size": 4, **options})


@pytest.mark.promise("P5")
@pytest.mark.parametrize(
    ("saved", "resumed"),
    [
        ({}, {"view": Windows(5, tail="drop")}),
        ({"view": Windows(4, stride=2)}, {"view": Windows(4, stride=2, shift=1)}),
        ({"view": Segments(4)}, {"view": Windows(4, stride=4)}),
        ({}, {"lengths": (31, 12, 7)}),
        ({}, {"lengths": (30, 12, 6, 1)}),
        ({"order": Shuffle()}, {}),
        ({"order": Shuffle()}, {"order": BlockShuffle()}),
        ({"order": Weighted([1, 2, 3])}, {"order": Weighted([3, 2, 1])}),
        ({"order": ByLength(pool=5)}, {"order": ByLength(pool=6)}),
    ],
)
def test_a_state_of_something_else_is_refused(saved: dict[str, Any], resumed: dict[str, Any]) -> None:
    other = feed(**resumed)
    before = other.state_dict()
    with pytest.raises(FeedError, match="Resume with what the state was saved with"):
        other.load_state_dict(feed(**saved).state_dict())
    assert other.state_dict() == before, "a refused state changes nothing"


@pytest.mark.parametrize("order", [BlockShuffle(1), ByLength(1)])
def test_a_state_brings_what_its_order_chose_for_another_batch_size(order: Any) -> None:
    """Also the second time: what was taken from one state does not bind against the next."""
    given: dict[str, Any] = {"view": Sequences(20), "lengths": (3, 9, 1, 20, 4, 7, 8), "order": order}
    saved = {size: feed(batch_size=size, **given) for size in (2, 3)}
    resumed = feed(batch_size=5, return_index=True, last_batch="short", **given)
    for size in (2, 3, 2):
        resumed.load_state_dict(saved[size].state_dict())
        expected = saved[size].plan.numbers(0, 0, 7).tolist()
        assert [number for batch in resumed for number in batch["sample"].tolist()] == expected


def test_a_state_that_contradicts_what_was_given_is_refused() -> None:
    saved = feed(order=BlockShuffle(block=2, window=8)).state_dict()
    with pytest.raises(OptionError, match=r"saved with BlockShuffle\(block=2\), but this feed has block=4"):
        feed(order=BlockShuffle(block=4, window=8)).load_state_dict(saved)

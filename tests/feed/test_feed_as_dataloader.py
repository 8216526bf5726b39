"""The feed in the place of a `DataLoader`: what loops and libraries ask a loader for, they find here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.feed.ecosystem import assert_same, window_feed

import stoker


def seen(batches: Iterator[dict[str, object]]) -> list[list[int]]:
    return [[int(number) for number in batch["sample"] if number >= 0] for batch in batches]  # type: ignore[attr-defined]


def test_a_feed_has_the_attributes_of_a_loader() -> None:
    feed = window_feed(last_batch="drop")
    assert (len(feed), feed.batch_size, feed.drop_last) == (4, 4, True)
    assert not window_feed(last_batch="pad").drop_last
    assert_same(feed.dataset[:4], next(iter(feed)))
    assert len(feed.dataset) == feed.num_samples == 18


def lose_track(feed: stoker.Feed) -> bool:
    """What a feed would know that counts a pass as used as soon as it has begun."""
    return True


def resume_after_an_unused_pass() -> tuple[list[list[int]], list[list[int]]]:
    """What came after a loaded state, and what should."""
    feed = window_feed(order=stoker.Shuffle(seed=1))
    batches = iter(feed)
    next(batches)
    state, rest = feed.state_dict(), seen(batches)
    feed.load_state_dict(state)
    iter(feed)  # as Lightning does, to see whether it can be iterated
    return seen(iter(feed)), rest


@pytest.mark.promise("P5", control=True)
def test_a_pass_that_no_one_used_loses_no_loaded_state(monkeypatch: pytest.MonkeyPatch) -> None:
    found, expected = resume_after_an_unused_pass()
    assert found == expected
    monkeypatch.setattr(stoker.Feed, "_has_moved", property(lose_track))
    found, expected = resume_after_an_unused_pass()
    assert found != expected


def test_a_pass_that_waits_for_its_first_batch_goes_where_the_feed_is_sent() -> None:
    feed = window_feed(order=stoker.Shuffle(seed=1))
    epochs = [seen(iter(feed)) for _ in range(4)]
    for threads in (0, 2):
        feed = window_feed(order=stoker.Shuffle(seed=1), threads=threads)
        batches = iter(feed)
        feed.set_epoch(2)
        assert seen(batches) == epochs[2]
        batches = iter(feed)
        feed.load_state_dict({**feed.state_dict(), "epoch": 1, "position": 8})
        assert len(batches) == 3
        first = next(batches)
        assert feed.state_dict()["position"] == 12
        assert [first["sample"].tolist(), *seen(batches)] == epochs[1][2:]


def test_a_pass_in_use_stays_where_it_is() -> None:
    feed = window_feed(order=stoker.Shuffle(seed=1))
    whole = seen(iter(feed))
    feed.set_epoch(0)
    batches = iter(feed)
    next(batches)
    feed.set_epoch(7)
    feed.set_epoch(8)
    assert seen(batches) == whole[1:]
    assert (feed.state_dict()["epoch"], feed.state_dict()["position"]) == (8, 0)


def test_a_framework_that_sets_the_epoch_says_what_it_leaves_out() -> None:
    feed = window_feed(order=stoker.Shuffle(seed=1))
    feed.load_state_dict({**feed.state_dict(), "epoch": 3, "position": 8})
    feed.batch_sampler.sampler.set_epoch(3)
    assert feed.is_resumed
    with pytest.warns(UserWarning, match=r"continues epoch 3, but the framework sets the feed to epoch 0: the rest"):
        feed.batch_sampler.sampler.set_epoch(0)
    assert not feed.is_resumed

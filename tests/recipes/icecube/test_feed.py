"""EventFeed: the feed's promises hold for events: exactly once, any number of ranks, exact resume, static shapes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import stoker
from stoker.testing import assert_resumes_exactly
from stoker_recipes.icecube import EventFeed, expand
from stoker_recipes.icecube.batches import group_pulses

ORDERS = {
    "sequential": stoker.Sequential(),
    "shuffle": stoker.Shuffle(1),
    "block": stoker.BlockShuffle(1, block=8, window=64),
    "by length": stoker.ByLength(1),
}


def ids(feed: EventFeed) -> list[int]:
    return [number for batch in feed for number in batch.event_id.tolist()]


@pytest.mark.promise("P29")
@pytest.mark.parametrize("order", ORDERS)
def test_every_event_comes_once_as_the_kernel_groups_it(store: stoker.Store, order: str) -> None:
    feed = EventFeed(store, batch_size=32, order=ORDERS[order], loading=stoker.feed.Loading(threads=2))
    seen = []
    for batch in feed:
        numbers = np.searchsorted(store.column("event_id"), batch.event_id.numpy())
        starts, stops = store.offsets[numbers], store.offsets[numbers + 1]
        columns = [store.column(name) for name in ("time", "charge", "sensor_id", "auxiliary")]
        expected = group_pulses(*columns, starts, stops)
        for name, values in expected._asdict().items():
            assert np.array_equal(getattr(batch, name).numpy(), values), name
        assert batch.num_pulses.tolist() == (stops - starts).tolist()
        target = np.stack([store.column("azimuth"), store.column("zenith")], axis=1)[numbers].astype(np.float32)
        assert np.array_equal(batch.target.numpy(), target)
        seen += numbers.tolist()
    assert sorted(seen) == list(range(201))
    assert (seen == sorted(seen)) == (order == "sequential")


@pytest.mark.promise("P29")
@pytest.mark.parametrize("order", ORDERS)
def test_ranks_share_the_batches_of_one_process(store: stoker.Store, order: str) -> None:
    alone = [batch.event_id.tolist() for batch in EventFeed(store, batch_size=30, order=ORDERS[order])]
    shares = [stoker.feed.Distributed(rank=rank, world_size=3) for rank in range(3)]
    ranks = [EventFeed(store, batch_size=10, order=ORDERS[order], distributed=share) for share in shares]
    together = [[number for batch in step for number in batch.event_id.tolist()] for step in zip(*ranks, strict=True)]
    assert together == alone


@pytest.mark.promise("P29")
@pytest.mark.parametrize("order", ORDERS)
def test_a_feed_resumes_at_every_batch_on_any_number_of_ranks(store: stoker.Store, order: str) -> None:
    def make(rank: int, world_size: int) -> EventFeed:
        return EventFeed(
            store,
            batch_size=60 // world_size,
            order=ORDERS[order],
            distributed=stoker.feed.Distributed(rank=rank, world_size=world_size),
            loading=stoker.feed.Loading(threads=world_size - 1),
        )

    assert_resumes_exactly(make, worlds=(1, 2), samples=lambda batch: batch.event_id)


@pytest.mark.promise("P29", control=True)
def test_negative_control_a_feed_without_its_position_does_not_resume(store: stoker.Store) -> None:
    class Forgets(EventFeed):
        def state_dict(self) -> dict[str, object]:
            return {**super().state_dict(), "position": 0}

    with pytest.raises(AssertionError):
        assert_resumes_exactly(lambda: Forgets(store, batch_size=60, order=stoker.Shuffle(0)))


def test_shapes_are_rounded_up_for_graphs(store: stoker.Store) -> None:
    plain = EventFeed(store, batch_size=32, order=stoker.Shuffle(0))
    rounded = EventFeed(store, batch_size=32, order=stoker.Shuffle(0), multiples=(512, 4096))
    geometry = torch.zeros(5160, 3)
    for one, other in zip(plain, rounded, strict=True):
        assert len(other.sensor) % 512 == 0
        assert len(other.time) % 4096 == 0
        assert len(other.sensor) - len(one.sensor) < 512
        assert torch.equal(other.dom_offsets, one.dom_offsets)
        assert torch.equal(expand(other, geometry)[: len(one.sensor)], expand(one, geometry))


def test_a_padded_last_batch_has_events_without_doms(store: stoker.Store) -> None:
    *_, last = EventFeed(store, batch_size=32, last_batch="pad")
    assert len(last) == 32
    count = 201 - 6 * 32
    assert last.dom_offsets[count:].tolist() == [int(last.dom_offsets[-1])] * (32 - count + 1)
    assert last.event_id[count:].tolist() == [-1] * (32 - count)
    assert last.target[count:].isnan().all()
    assert not last.num_pulses[count:].any()
    assert not last.target[:count].isnan().any()

"""EventFeed: the feed's promises hold for events: exactly once, any number of ranks, exact resume, static shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import stoker
from stoker.testing import assert_resumes_exactly
from stoker_recipes.icecube import EventBatch, EventFeed, expand
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


class Direction(torch.nn.Module):
    """A mean over the tokens of an event, and a linear map."""

    def __init__(self) -> None:
        super().__init__()
        self.out = torch.nn.Linear(256, 2)
        self.register_buffer("geometry", torch.zeros(5160, 3))

    def forward(self, batch: EventBatch) -> torch.Tensor:
        tokens = expand(batch, self.geometry)  # type: ignore[arg-type]
        event = torch.repeat_interleave(torch.arange(len(batch)), batch.dom_offsets.diff())
        sums = torch.zeros(len(batch), 256).index_add(0, event, tokens)
        result: torch.Tensor = self.out(sums / batch.dom_offsets.diff().clamp(min=1)[:, None])
        return result


def loss(model: torch.nn.Module, batch: EventBatch) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch), batch.target)


class StopAt:
    """A callback that ends the run after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_batch_end(self, report: Any) -> None:
        if report.step == self.step:
            report.stop()


def train(store: stoker.Store, folder: Path, *, stop_at: int = 0, resume: bool = False) -> torch.nn.Module:
    torch.manual_seed(0)
    model = Direction()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    trainer = stoker.Trainer(model, loss, optimizer, folder=folder, progress=False, callbacks=[StopAt(stop_at)])
    trainer.fit(EventFeed(store, batch_size=32, order=stoker.BlockShuffle(0, 8, 64)), epochs=2, resume=resume)
    return model


@pytest.mark.promise("P29")
def test_a_trainer_resumes_exactly_in_the_middle_of_an_epoch(store: stoker.Store, tmp_path: Path) -> None:
    whole = train(store, tmp_path / "whole")
    stopped = train(store, tmp_path / "run", stop_at=10)
    assert not torch.equal(stopped.out.weight, whole.out.weight)  # type: ignore[union-attr, arg-type]
    again = train(store, tmp_path / "run", resume=True)
    assert torch.equal(again.out.weight, whole.out.weight)  # type: ignore[union-attr, arg-type]


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

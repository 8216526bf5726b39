"""Dataset: events for a plain DataLoader, ragged or padded, equal to the authors' collator."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tests.recipes.icecube.plain_events import collate
from torch.utils.data import DataLoader

import stoker
from stoker_recipes.icecube import Dataset, dataset, scale_geometry
from stoker_recipes.icecube.tokens import pad


def test_an_item_has_all_pulses_of_an_event(store: stoker.Store) -> None:
    events = Dataset(store)
    event, series = events[5], store[5]
    assert len(events) == 201
    for name in ("time", "charge", "sensor_id", "auxiliary"):
        assert np.array_equal(event[name].numpy(), series[name])
    assert np.array_equal(event["position"].numpy(), events.positions[series["sensor_id"]].astype(np.float32))
    assert event["target"].tolist() == [np.float32(series["azimuth"]), np.float32(series["zenith"])]
    assert int(event["event_id"]) == series["event_id"]
    assert torch.equal(events[-1]["time"], events[200]["time"])


@pytest.mark.promise("P29")
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_dataloader_gives_padded_batches_as_the_collator_does(store: stoker.Store, shuffle: bool) -> None:
    events = Dataset(store, max_doms=64)
    geometry = scale_geometry(events.positions)
    generator = torch.Generator().manual_seed(3)
    for batch in DataLoader(events, batch_size=48, shuffle=shuffle, collate_fn=events.collate_padded, generator=generator):
        numbers = np.searchsorted(store.column("event_id"), batch["event_id"].numpy())
        own = [store[int(number)] for number in numbers]
        pulses = tuple(np.concatenate([one[name] for one in own]) for name in ("time", "charge", "sensor_id", "auxiliary"))
        offsets = np.concatenate([[0], np.cumsum(store.lengths[numbers])])
        tokens, mask = collate(pulses, offsets, geometry, max_pulses=84, max_doms=64)  # type: ignore[arg-type]
        assert torch.equal(batch["mask"], mask)
        # The logarithm of the kernel is rounded correctly; that of torch may differ in the last bit.
        torch.testing.assert_close(batch["tokens"], tokens, rtol=2.4e-7, atol=0)
        assert torch.equal(batch["tokens"][..., [0, 1, 2, 4, 6]], tokens[..., [0, 1, 2, 4, 6]])
        assert batch["num_pulses"].tolist() == store.lengths[numbers].tolist()


@pytest.mark.promise("P29")
def test_a_kept_batch_never_changes(store: stoker.Store) -> None:
    """The memory of a batch is used again, but only when nothing refers to it."""
    events = Dataset(store)
    kept = events.collate_padded(events.__getitems__([7, 3]))["tokens"][0]  # a view is enough
    copy, place = kept.clone(), kept.data_ptr()
    others = [events.collate_padded(events.__getitems__([i, i + 1]))["tokens"] for i in range(2)]
    assert torch.equal(kept, copy)
    assert len({place, *(one.data_ptr() for one in others)}) == 3
    del kept
    assert events.collate_padded(events.__getitems__([1, 2]))["tokens"].data_ptr() == place


CHANGES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "nothing": lambda tokens, mask: None,
    "a number": lambda tokens, mask: tokens[-1, -1, -2].fill_(7),
    "a number of a view": lambda tokens, mask: tokens.view(-1).detach()[1001:1003].sub_(7),
    "all numbers in inference mode": lambda tokens, mask: torch.inference_mode()(tokens.add_)(1),
    "all numbers by NumPy": lambda tokens, mask: np.add(tokens.numpy(), 1, out=tokens.numpy()),
    "padding by NumPy": lambda tokens, mask: np.copyto(tokens.numpy()[:, :, -1:], np.nan, where=~mask.numpy()[:, :, None]),
    "all numbers of data": lambda tokens, mask: tokens.data.mul_(0).sub_(1),
}


@pytest.mark.promise("P29")
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("is_inference", [False, True])
def test_memory_that_is_used_again_gives_the_same_tokens(
    store: stoker.Store, rng: np.random.Generator, change: str, is_inference: bool
) -> None:
    """Only what the last batch wrote is cleared, so a batch that its user changed must not be trusted."""
    events = Dataset(store, max_pulses=20, max_doms=64)
    places = set()
    for size in (32, 32, 7, 32, 1, 20, 32):
        numbers = rng.permutation(len(events))[:size].tolist()
        with torch.inference_mode(is_inference):
            batch = events.collate_padded(events.__getitems__(numbers))
        expected, mask = pad(events.__getitems__(numbers), events._scaled, max_pulses=20, max_doms=64)
        assert np.array_equal(batch["tokens"].numpy().view(np.int32), expected.view(np.int32))
        assert np.array_equal(batch["mask"].numpy(), mask)
        CHANGES[change](batch["tokens"], batch["mask"])
        places.add(batch["tokens"].data_ptr())
        del batch
    assert len(places) == 1


@pytest.mark.promise("P29", control=True)
def test_negative_control_a_change_that_is_not_noticed_stays(store: stoker.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset, "_is_changed", lambda values, used: False)
    events = Dataset(store)
    events.collate_padded(events.__getitems__([1, 2]))["tokens"].numpy()[:] = 5
    assert (events.collate_padded(events.__getitems__([1, 2]))["tokens"][:, :, -1] == 5).any()


def test_worker_processes_open_the_store_themselves(store: stoker.Store) -> None:
    events = Dataset(store, events=store.where("num_steps >= 60"))
    again = pickle.loads(pickle.dumps(events))
    assert len(again) == len(events) == int((store.lengths >= 60).sum())
    assert len(pickle.dumps(events)) < 10_000
    loader = DataLoader(events, batch_size=32, num_workers=2, collate_fn=events.collate_ragged)
    found = [number for batch in loader for number in batch.event_id.tolist()]
    assert found == store.column("event_id")[store.lengths >= 60].tolist()

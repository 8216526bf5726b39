"""Sensor vectors in one pass: bit for bit those of a plain loop, and those of iceaggr's collator but for ties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from benchmarks import events
from benchmarks.before.iceaggr_events import Event, make_collate_flat
from benchmarks.dom_padding import pad_doms

Array = npt.NDArray[Any]

POSITIONS = (events.geometry() / 500).astype(np.float32)


def plain_vectors(pulses: dict[str, Array], start: int, stop: int, max_pulses: int, max_doms: int) -> tuple[Array, int]:
    """The slow twin of one event: a dictionary of lists."""
    doms: dict[int, list[int]] = {}
    kept: set[int] = set()
    for pulse in range(start, stop):
        doms.setdefault(int(pulses["sensor_id"][pulse]), []).append(pulse)
        if len(doms) == max_doms and not kept:
            kept = set(doms)
    rows = np.zeros((max_doms, 4 + 3 * max_pulses), dtype=np.float32)
    for slot, sensor in enumerate(sorted(kept or doms)):
        rows[slot, :3] = POSITIONS[sensor]
        rows[slot, 3] = np.float32(math.log1p(len(doms[sensor]))) / np.float32(3) - np.float32(1)
        for place, pulse in enumerate(doms[sensor][:max_pulses]):
            charge = math.log10(max(np.float32(pulses["charge"][pulse]), np.float32(1e-6)))
            rows[slot, 4 + 3 * place] = (np.float32(pulses["time"][pulse]) - np.float32(1e4)) / np.float32(3e4)
            rows[slot, 5 + 3 * place] = np.float32(charge) / np.float32(3)
            rows[slot, 6 + 3 * place] = np.float32(pulses["auxiliary"][pulse]) - np.float32(0.5)
    return rows, len(kept or doms)


@pytest.fixture(scope="module")
def file() -> tuple[dict[str, Array], Array, Array]:
    """Pulses in an order in which no two of an event have the same time, so that there are no ties."""
    pulses, meta = events.make_file(1, events.Shape(events_per_file=150, seed=3))
    starts, stops = meta["first_pulse_index"], meta["last_pulse_index"] + 1
    assert (stops - starts).max() > 500
    for start, stop in zip(starts, stops, strict=True):
        pulses["time"][start:stop] += np.arange(stop - start)
    return pulses, starts, stops


def pad(pulses: dict[str, Array], starts: Array, stops: Array, **options: Any) -> tuple[Array, Array]:
    time, charge, sensor, auxiliary = (pulses[name] for name in ("time", "charge", "sensor_id", "auxiliary"))
    return pad_doms(time, charge, sensor, auxiliary, starts, stops, POSITIONS, **options)


@pytest.mark.parametrize(("max_pulses", "max_doms"), [(16, 128), (1, 128), (3, 20)])
def test_equals_a_plain_loop(file: tuple[dict[str, Array], Array, Array], max_pulses: int, max_doms: int) -> None:
    pulses, starts, stops = file
    vectors, mask = pad(pulses, starts, stops, max_pulses=max_pulses, max_doms=max_doms)
    for event, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        rows, num_doms = plain_vectors(pulses, start, stop, max_pulses, max_doms)
        assert mask[event].tolist() == [True] * num_doms + [False] * (max_doms - num_doms)
        assert np.array_equal(vectors[event], rows)


def test_equals_the_collator(file: tuple[dict[str, Array], Array, Array]) -> None:
    pulses, starts, stops = file
    vectors, mask = pad(pulses, starts, stops)
    features = np.stack([pulses[name] for name in ("time", "charge", "sensor_id", "auxiliary")], axis=1).astype(np.float32)
    batch: list[Event] = [
        {"pulse_features": torch.from_numpy(features[a:b]), "event_id": torch.tensor(0), "target": torch.zeros(2)}
        for a, b in zip(starts, stops, strict=True)
    ]
    theirs = make_collate_flat(torch.from_numpy(POSITIONS))(batch)
    assert np.array_equal(mask, theirs["padding_mask"].numpy())
    assert np.abs(vectors - theirs["dom_vectors"].numpy()).max() < 1e-7


def test_a_buffer_is_filled_whole(file: tuple[dict[str, Array], Array, Array]) -> None:
    pulses, starts, stops = file
    out = np.full((len(starts), 128, 52), np.nan, dtype=np.float32)
    mask = np.ones((len(starts), 128), dtype=np.bool_)
    vectors, valid = pad(pulses, starts, stops, out=out, mask=mask)
    assert vectors is out
    assert valid is mask
    again, valid_again = pad(pulses, starts, stops)
    assert np.array_equal(out, again)
    assert np.array_equal(mask, valid_again)


def test_an_event_without_pulses_is_all_padding(file: tuple[dict[str, Array], Array, Array]) -> None:
    pulses, _, _ = file
    vectors, mask = pad(pulses, np.array([5]), np.array([5]))
    assert not vectors.any()
    assert not mask.any()

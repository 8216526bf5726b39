"""Ragged batches: equal to a plain formulation for any events, with room for static shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.recipes.icecube.plain_events import plain_doms, random_pulses

from stoker_recipes.icecube.batches import EventBatch, GroupedPulses, group_pulses, pad_to


def check(grouped: GroupedPulses, pulses: tuple[np.ndarray, ...], offsets: np.ndarray, *, max_pulses: int, max_doms: int) -> None:
    time, charge, _, auxiliary = pulses
    dom = 0
    for event, (start, stop) in enumerate(itertools.pairwise(offsets)):
        assert grouped.dom_offsets[event] == dom
        for number, own in plain_doms(pulses, start, stop, max_doms=max_doms).items():  # type: ignore[arg-type]
            assert grouped.sensor[dom] == number
            assert grouped.dom_pulses[dom] == len(own)
            kept = slice(grouped.pulse_offsets[dom], grouped.pulse_offsets[dom + 1])
            for found, column in ((grouped.time, time), (grouped.charge, charge), (grouped.auxiliary, auxiliary)):
                assert found[kept].tolist() == column[own[:max_pulses]].tolist()
            dom += 1
    assert grouped.dom_offsets[-1] == dom == len(grouped.sensor) == len(grouped.pulse_offsets) - 1
    assert grouped.pulse_offsets[-1] == len(grouped.time) == len(grouped.charge) == len(grouped.auxiliary)


@pytest.mark.promise("P29")
@pytest.mark.parametrize(("num_sensors", "ties"), [(5160, False), (5160, True), (40, True), (1, False)])
@pytest.mark.parametrize(("max_pulses", "max_doms"), [(84, 128), (3, 20), (1, 1)])
def test_pulses_are_grouped_by_the_plain_rule(
    rng: np.random.Generator, num_sensors: int, ties: bool, max_pulses: int, max_doms: int
) -> None:
    pulses, offsets = random_pulses(rng, [12, 1, 0, 300, 60, 700, 0], num_sensors=num_sensors, ties=ties)
    limits = {"max_pulses": max_pulses, "max_doms": max_doms}
    check(group_pulses(*pulses, offsets, **limits), pulses, offsets, **limits)


def batch_of(rng: np.random.Generator, lengths: list[int]) -> EventBatch:
    pulses, offsets = random_pulses(rng, lengths)
    facts = {"target": rng.random((len(lengths), 2)), "event_id": np.arange(len(lengths)), "num_pulses": np.diff(offsets)}
    return EventBatch.of(group_pulses(*pulses, offsets), **facts)


def test_padding_keeps_offsets_and_adds_rows_of_no_event(rng: np.random.Generator) -> None:
    batch = batch_of(rng, [40, 70])
    padded = pad_to(batch, doms=200, pulses=300)
    assert (len(padded.sensor), len(padded.dom_pulses), len(padded.pulse_offsets)) == (200, 200, 201)
    assert (len(padded.time), len(padded.charge), len(padded.auxiliary)) == (300, 300, 300)
    assert padded.dom_offsets.tolist() == batch.dom_offsets.tolist()
    doms, pulses = len(batch.sensor), len(batch.time)
    assert padded.sensor[:doms].tolist() == batch.sensor.tolist()
    assert padded.time[:pulses].tolist() == batch.time.tolist()
    assert not padded.sensor[doms:].any()
    assert not padded.dom_pulses[doms:].any()
    assert not padded.time[pulses:].any()
    assert set(padded.pulse_offsets[doms:].tolist()) == {pulses}

"""Ragged batches: equal to a plain formulation for any events, with room for static shapes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tests.recipes.icecube.plain_events import plain_doms, random_pulses

from stoker_recipes.icecube.batches import GroupedPulses, group_pulses


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

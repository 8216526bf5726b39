"""Stretches at different speeds of a machine, brought to one."""

from __future__ import annotations

import statistics

import pytest

from stoker.diagnose.measurements import Stretch
from stoker.diagnose.recorder import at_one_level


def test_a_round_is_reported_at_the_speed_that_the_loop_mostly_had() -> None:
    loop = [[10.0] * 5, [10.0] * 5, [15.0] * 5, [15.0] * 5, [10.0] * 9]
    cached = [[6.0] * 3, [99.0] * 3, [9.0] * 3, [99.0] * 3]  # the second and the fourth while the speed changed
    assert at_one_level(cached, loop) == [pytest.approx([6.0] * 3)] * 2
    raw = statistics.median([value for values in cached for value in values])
    assert raw != pytest.approx(6.0)  # as it would be without


def test_without_steady_rounds_all_are_taken() -> None:
    found = at_one_level([[5.0], [8.0]], [[10.0, 10.0], [16.0, 16.0], [10.0, 10.0]])
    assert len(found) == 2
    assert found[0] == pytest.approx([5.0 * 10.0 / 13.0])


def test_without_a_loop_nothing_changes() -> None:
    assert at_one_level([[1.0], [2.0]], []) == [[1.0], [2.0]]
    assert at_one_level([[1.0], []], [[2.0]]) == [[1.0], []]


def test_a_change_of_speed_between_pieces_does_not_count_as_spread() -> None:
    steps = [1.0, 1.01, 0.99, 1.0] * 4
    both = Stretch(seconds=[*steps, *(1.5 * one for one in steps)], pieces=[16, 16])
    assert both.spread < 0.02
    assert Stretch(seconds=both.seconds).spread > 0.15  # where it is not known what was measured in a row

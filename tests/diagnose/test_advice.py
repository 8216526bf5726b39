"""Advice: how sure a prediction is where threads wait for each other."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.measured import MS, around, on_cpu

from stoker.diagnose.advice import waiting_threads
from stoker.diagnose.measurements import Advice, WhatIf
from stoker.diagnose.verdict import conclude


@pytest.mark.parametrize(
    ("by_threads", "cores_used", "expected"),
    [
        ({"1": 2.0, "2": 1.0}, 2.0, 0.0),  # each gains all it can
        ({"1": 1.0, "2": 1.0}, 1.0, 0.0),  # there is only one
        ({"1": 1.0, "2": 1.0}, 2.0, 1.0),
        ({"1": 1.0, "2": 1.7}, 2.0, 1.0),
        ({"1": 1.0, "2": 0.75}, 2.0, 0.5),
        ({"1": 1.0, "2": 1.0}, 1.5, 0.5),
        ({}, 2.0, 1.0),  # nobody knows
        ({"1": 1.0, "2": 1.7}, None, 0.0),
    ],
)
def test_threads_that_gain_nothing_wait(by_threads: dict[str, float], cores_used: float | None, expected: float) -> None:
    measured = on_cpu(fewer_threads=by_threads, cores_used=cores_used)
    assert waiting_threads(measured) == pytest.approx(expected)


def advised(name: str, **more: Any) -> Advice:
    what_ifs = {"fused": WhatIf(as_it_is=around(5.0 * MS), with_fix=around(4.5 * MS))}
    measured = on_cpu(next=20.0, forward=1.9, backward=2.0, optimizer=0.9, what_ifs=what_ifs, **more)
    return next(step for step in conclude(measured).next if step.name == name)


WAITING = {"fewer_threads": {"1": 5.0 * MS, "2": 5.0 * MS}, "cores_used": 2.0}


def test_a_step_of_threads_that_wait_makes_a_range_of_what_is_left_of_it() -> None:
    assert advised("cached").predicted is not None
    step = advised("cached", **WAITING)
    assert step.predicted is None
    assert step.predicted_low is not None
    assert step.predicted_high is not None
    assert step.predicted_high / step.predicted_low > 1.3


def test_a_range_that_says_nothing_is_not_reported() -> None:
    wild = {"fused": WhatIf(as_it_is=around(5.0 * MS), with_fix=around(4.5 * MS, spread=0.9, number=4))}
    measured = on_cpu(next=0.1, forward=1.9, backward=1.0, optimizer=5.0, what_ifs=wild)
    step = next(step for step in conclude(measured).next if step.name == "fused")
    assert (step.predicted, step.predicted_low, step.predicted_high) == (None, None, None)


def test_what_such_a_step_is_with_a_fix_and_without_it_changes_alike() -> None:
    assert advised("fused", **WAITING).predicted == pytest.approx(advised("fused").predicted or 0.0)

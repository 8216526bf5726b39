"""What was observed: the time of a step is that of the second half of the run."""

from __future__ import annotations

import msgspec
import pytest
from tests.compare.observations import STEPS, observed

from stoker.compare.observed import Observed


def test_the_time_of_a_step_is_that_of_the_second_half() -> None:
    run = observed(step=0.01)
    assert run.step_seconds == pytest.approx(0.01)
    slow = [end + 5.0 * min(number, 9) for number, end in enumerate(run.ends)]  # the first ten steps
    assert observed(ends=slow, middle=slow[STEPS // 2 - 1], end=slow[-1]).step_seconds == pytest.approx(0.01)
    assert observed(end=run.end + 2.0).step_seconds == pytest.approx(0.01 + 2.0 / (STEPS // 2))


def test_two_processes_exchange_it_with_all_its_values() -> None:
    run = observed(losses=[float("nan"), float("inf")])
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(run), type=Observed)
    assert repr(again) == repr(run)

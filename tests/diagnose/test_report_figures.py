"""The figures of a report: bars lie within the page, whatever was measured."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from tests.diagnose.findings import on_gpu

from stoker.diagnose import report
from stoker.diagnose.measurements import Advice, Measurements, TrialResult

NUMBERS = st.floats() | st.just(0.0)


def measured() -> Measurements:
    found = on_gpu().measurements
    assert found is not None
    return found


def test_a_try_that_failed_has_no_bar() -> None:
    tries, one = report.trial_bars(on_gpu().next)
    assert [item.measured is None for item in tries] == [False, False, False, True, True, True]
    assert tries[5].predicted is None
    assert one == pytest.approx(100 / (2.23 * report.TRIAL_MARGIN))
    for item in tries[:3]:
        assert item.measured is not None
        assert item.low < item.measured < item.high


def test_a_removal_has_a_bar_for_what_is_left_and_one_for_what_has_gone() -> None:
    rows = {bar.name: bar for bar in report.removal_bars(measured())}
    assert list(rows) == ["loading", "uploads", "all of these", "all but GPU kernels"]
    assert (rows["loading"].change, round(rows["loading"].left)) == ("13.5 ms -> 6.05 ms", 45)
    assert all(bar.left + bar.gone == pytest.approx(100) for bar in rows.values())


@given(NUMBERS | st.none(), NUMBERS, NUMBERS, NUMBERS)
def test_bars_of_trials_too(predicted: float | None, speedup: float, low: float, high: float) -> None:
    tried = TrialResult(speedup=speedup, low=low, high=high, losses="equal")
    [item], one = report.trial_bars([Advice(name="x", sentence="x", predicted=predicted, tried=tried)])
    assert all(
        0 <= number <= 100 for number in (item.predicted or 0.0, item.measured, item.low, item.high, one) if number is not None
    )

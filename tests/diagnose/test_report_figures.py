"""The figures of a report: bars lie within the page, whatever was measured."""

from __future__ import annotations

import itertools
import math

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given
from tests.diagnose.findings import on_cpu, on_gpu

from stoker.diagnose import report
from stoker.diagnose.measurements import Advice, Measurements, Phases, TrialResult

NUMBERS = st.floats() | st.just(0.0)


def measured() -> Measurements:
    found = on_gpu().measurements
    assert found is not None
    return found


def test_the_host_fills_the_step() -> None:
    bars = report.host_bars(measured())
    assert [bar.name for bar in bars][:2] == ["wait for a batch", "prepare the batch"]
    assert sum(bar.length for bar in bars) == pytest.approx(100)
    assert all(bar.start + bar.length == pytest.approx(after.start) for bar, after in itertools.pairwise(bars))


def test_work_of_the_device_begins_when_it_can_have_been_issued() -> None:
    host = {bar.colour: bar for bar in report.host_bars(measured())}
    device = report.device_bars(measured())
    assert [bar.name for bar in device] == ["forward and loss", "backward", "optimizer"]
    assert all(bar.start == pytest.approx(host[bar.colour].start) for bar in device)


def test_a_device_that_is_never_idle_fills_the_step() -> None:
    busy = msgspec.structs.replace(measured(), device_phases={"forward": 0.5, "backward": 1.0, "optimizer": 0.5})
    bars = report.device_bars(busy)
    assert [(bar.start, bar.length) for bar in bars] == [(0, 25), (25, 50), (75, 25)]


def test_work_that_is_issued_late_still_ends_within_the_step() -> None:
    late = msgspec.structs.replace(measured(), device_phases={"optimizer": 0.008})
    [bar] = report.device_bars(late)
    assert bar.start + bar.length == pytest.approx(100)


def test_a_cpu_has_no_device() -> None:
    found = on_cpu().measurements
    assert found is not None
    assert report.device_bars(found) == []


def test_the_ladder_says_what_is_left_and_what_has_gone() -> None:
    drawn = report.ladder_bars(on_gpu())
    assert [round(level.left) for level in drawn] == [100, 45, 24, 3]
    assert [f"{level.level.gain:.2f}" for level in drawn] == ["1.00", "2.23", "1.86", "9.42"]
    assert sum(level.gone for level in drawn) == pytest.approx(100 - drawn[-1].left)


def test_a_try_that_failed_has_no_bar() -> None:
    tries, one = report.trial_bars(on_gpu().next)
    assert [item.measured is None for item in tries] == [False, False, False, True, True, True]
    assert tries[5].predicted is None
    assert one == pytest.approx(100 / (2.23 * report.TRIAL_MARGIN))
    for item in tries[:3]:
        assert item.measured is not None
        assert item.low < item.measured < item.high


@given(st.lists(NUMBERS, min_size=6, max_size=6), st.dictionaries(st.text(), NUMBERS, max_size=7))
def test_bars_stay_within_the_figure(phases: list[float], shares: dict[str, float]) -> None:
    names = Phases.__struct_fields__
    odd = msgspec.structs.replace(measured(), phases=Phases(**dict(zip(names, phases, strict=True))), device_phases=shares)
    for bars in (report.host_bars(odd), report.device_bars(odd), report.bars_in_a_row(shares)):
        for bar in bars:
            assert 0 <= bar.start <= 100
            assert 0 <= bar.length <= 100
            assert bar.start + bar.length <= 100 + 1e-6


@given(NUMBERS | st.none(), NUMBERS, NUMBERS, NUMBERS)
def test_bars_of_trials_too(predicted: float | None, speedup: float, low: float, high: float) -> None:
    tried = TrialResult(speedup=speedup, low=low, high=high, losses="equal")
    [item], one = report.trial_bars([Advice(name="x", sentence="x", predicted=predicted, tried=tried)])
    assert all(
        0 <= number <= 100 for number in (item.predicted or 0.0, item.measured, item.low, item.high, one) if number is not None
    )


@given(st.dictionaries(st.text(), NUMBERS, max_size=6))
def test_any_ladder_can_be_drawn(ladder: dict[str, float]) -> None:
    for level in report.ladder_bars(msgspec.structs.replace(on_gpu(), ladder=ladder)):
        assert math.isfinite(level.left)
        assert 0 <= level.left <= 100
        assert 0 <= level.gone <= 100

"""Iterations of a loop, timed by two clock reads each."""

from __future__ import annotations

from stoker.diagnose.hooks import StepTimes
from stoker.diagnose.recorder import StepSeries
from stoker.diagnose.session import LoopTimer

MS = 1_000_000


def run(timer: LoopTimer, number: int, *, wait: int = 2, work: int = 8, broken: tuple[int, ...] = ()) -> int:
    """Run iterations of ten milliseconds until the window is over; returns how many there were."""
    now = 5 * MS
    for turn in range(number):
        if timer.is_over(now):
            timer.end(now)
            return turn
        timer.add(now, now + wait * MS)
        if turn in broken:
            timer.mark_epoch_start(0)
        now += (wait + work) * MS
    return number


def test_a_measurement_window_ends_after_its_time_and_its_number() -> None:
    series = StepSeries()
    assert run(LoopTimer(series=series, seconds=0.05, least=3, most=100, cached=False), 100) == 5
    assert [(one.seconds, one.without_data) for one in series.steps] == [(0.010, 0.008)] * 5
    series.steps.clear()
    assert run(LoopTimer(series=series, seconds=0.05, least=9, most=100, cached=False), 100) == 9
    assert run(LoopTimer(series=series, seconds=0.0, least=7, most=7, cached=False), 100) == 7


def test_turns_at_which_an_epoch_ended_do_not_count() -> None:
    series = StepSeries()
    assert run(LoopTimer(series=series, seconds=0.0, least=4, most=100, cached=False), 100, broken=(1, 3)) == 6
    assert len(series.steps) == 4


def test_what_passes_between_epochs_is_in_none_but_the_turn_behind_it() -> None:
    series = StepSeries()
    ends: list[StepTimes] = []
    timer = LoopTimer(series=series, seconds=0.0, least=4, most=100, cached=False, add_epoch_start=ends.append)
    assert not timer.is_over(0)
    timer.add(0, 2 * MS)
    timer.end_epoch(10 * MS)  # worker processes end, which takes a millisecond
    timer.add(115 * MS, 119 * MS)  # behind a validation of 99 ms, and the start of worker processes
    timer.mark_epoch_start(99 * MS)
    timer.add(127 * MS, 129 * MS)
    timer.end_epoch(137 * MS)
    assert timer.end(500 * MS) == 3
    assert [(one.seconds, one.without_data) for one in series.steps] == [(0.010, 0.008), (0.010, 0.008)]
    assert [(one.seconds, one.without_data, one.between_ns) for one in ends] == [(0.117, 0.107, 99 * MS)]


def test_where_nearly_all_turns_are_so_they_are_the_steps() -> None:
    series = StepSeries()
    assert run(LoopTimer(series=series, seconds=0.0, least=2, most=6, cached=False), 100, broken=(0, 1, 2, 3, 4, 5)) == 6
    assert len(series.steps) == 6


def test_a_measurement_window_that_is_cut_short_keeps_the_turns_that_ended() -> None:
    series = StepSeries()
    timer = LoopTimer(series=series, seconds=9.0, least=3, most=100, cached=False)
    assert run(timer, 4) == 4
    assert timer.end() == 3  # the last has no end
    assert len(series.steps) == 3

"""Turns of a loop, by two looks at the clock each."""

from __future__ import annotations

from stoker.diagnose.hooks import Times
from stoker.diagnose.steps import Turns

MS = 1_000_000


def run(turns: Turns, number: int, *, wait: int = 2, work: int = 8, broken: tuple[int, ...] = ()) -> int:
    """So many turns of ten milliseconds, as far as the stretch goes; returns how many there were."""
    now = 5 * MS
    for turn in range(number):
        if turns.is_over(now):
            turns.end(now)
            return turn
        turns.add(now, now + wait * MS)
        if turn in broken:
            turns.break_off(0)
        now += (wait + work) * MS
    return number


def test_a_stretch_ends_after_its_time_and_its_number() -> None:
    into: list[Times] = []
    assert run(Turns(into, seconds=0.05, least=3, most=100, cached=False), 100) == 5
    assert [(one.seconds, one.without_data) for one in into] == [(0.010, 0.008)] * 5
    into.clear()
    assert run(Turns(into, seconds=0.05, least=9, most=100, cached=False), 100) == 9
    assert run(Turns(into, seconds=0.0, least=7, most=7, cached=False), 100) == 7


def test_turns_at_which_an_epoch_ended_do_not_count() -> None:
    into: list[Times] = []
    assert run(Turns(into, seconds=0.0, least=4, most=100, cached=False), 100, broken=(1, 3)) == 6
    assert len(into) == 4


def test_what_passes_between_epochs_is_in_none_but_the_turn_behind_it() -> None:
    into: list[Times] = []
    ends: list[Times] = []
    turns = Turns(into, seconds=0.0, least=4, most=100, cached=False, end=ends.append)
    assert not turns.is_over(0)
    turns.add(0, 2 * MS)
    turns.end_epoch(10 * MS)  # worker processes end, which takes a millisecond
    turns.add(115 * MS, 119 * MS)  # behind a validation of 99 ms, and the start of worker processes
    turns.break_off(99 * MS)
    turns.add(127 * MS, 129 * MS)
    turns.end_epoch(137 * MS)
    assert turns.end(500 * MS) == 3
    assert [(one.seconds, one.without_data) for one in into] == [(0.010, 0.008), (0.010, 0.008)]
    assert [(one.seconds, one.without_data, one.between_ns) for one in ends] == [(0.117, 0.107, 99 * MS)]


def test_where_nearly_all_turns_are_so_they_are_the_steps() -> None:
    into: list[Times] = []
    assert run(Turns(into, seconds=0.0, least=2, most=6, cached=False), 100, broken=(0, 1, 2, 3, 4, 5)) == 6
    assert len(into) == 6


def test_a_stretch_that_is_cut_short_keeps_the_turns_that_ended() -> None:
    into: list[Times] = []
    turns = Turns(into, seconds=9.0, least=3, most=100, cached=False)
    assert run(turns, 4) == 4
    assert turns.end() == 3  # the last has no end
    assert len(into) == 3

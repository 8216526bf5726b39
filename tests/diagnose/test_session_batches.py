"""The cached batches of a session, whether or not there are always more batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from tests.diagnose.clock import Clock

from stoker.diagnose import session
from stoker.diagnose.hooks import StepTimes
from stoker.diagnose.loops import Source, WatchedIterator
from stoker.diagnose.recorder import StepSeries
from stoker.diagnose.session import MAX_CACHED, Session, StepWindow
from stoker.diagnose.windows import measure_all
from stoker.errors import TrainError


def session_over(iterable: list[torch.Tensor] | Iterator[torch.Tensor]) -> Session:
    session = Session(measure_all, on_done=lambda: None)
    session.watched = WatchedIterator(session.sources, Source(iterable, None), iter(iterable), 0)
    return session


def batches(number: int) -> list[torch.Tensor]:
    return [torch.full((3,), float(value)) for value in range(number)]


def test_a_pass_that_ends_is_begun_again() -> None:
    session = session_over(batches(5))
    session.cache_batches()
    assert [int(batch[0]) for batch in session.batches] == [number % 5 for number in range(MAX_CACHED)]


def test_what_cannot_be_begun_again_is_not_used_up() -> None:
    session = session_over(iter(batches(5)))
    for one in batches(2):
        session.cache_batch(one)
    session.cache_batches()
    assert len(session.batches) == 2
    assert session.watched is not None
    assert int(next(session.watched.iterator)[0]) == 0


def test_without_any_batch_it_is_reported() -> None:
    session = session_over(iter(batches(0)))
    with pytest.raises(TrainError, match="came to an end"):
        session.cache_batches()


# ---- windows of steps with the same input, and when they end ----

MS = 1_000_000


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(session, "now_ns", clock)
    return clock


def run(clock: Clock, window: StepWindow, *, epochs: tuple[int, ...] = ()) -> int:
    """Run steps of ten milliseconds until the window is over; return their number."""
    window._begin_ns = clock.now
    for number in range(200):
        clock.now += 10 * MS
        if window.add(StepTimes((2 * MS, 0, 0, 0, 0, 8 * MS), number in epochs)):
            return number + 1
    return 200


def test_a_window_ends_after_its_time_and_its_number(clock: Clock) -> None:
    series = StepSeries()
    assert run(clock, StepWindow(series=series, seconds=0.05, least=3)) == 5
    assert [(step.seconds, step.without_data) for step in series.steps] == [(0.010, 0.008)] * 5
    assert run(clock, StepWindow(series=series, seconds=0.05, least=9)) == 9, "steps of the window before do not count"
    assert run(clock, StepWindow(series=series, seconds=9.0, least=3, most=7)) == 7
    assert len(series.steps) == 5 + 9 + 7


def test_steps_that_start_an_epoch_do_not_count_unless_nearly_all_do(clock: Clock) -> None:
    series = StepSeries()
    assert run(clock, StepWindow(series=series, seconds=0.0, least=4), epochs=(1, 3)) == 6
    assert (len(series.steps), len(series.epoch_starts)) == (4, 2)
    series = StepSeries()
    assert run(clock, StepWindow(series=series, seconds=0.0, least=2), epochs=tuple(range(200))) < 20
    assert len(series.steps) == 2


def test_a_window_that_has_lasted_its_time_may_ask_for_more(clock: Clock) -> None:
    asked: list[tuple[float, list[float]]] = []

    def extend(last: float, steps: Callable[[], list[float]]) -> bool:
        asked.append((last, list(steps())))
        return len(asked) < 3

    assert run(clock, StepWindow(series=StepSeries(), seconds=0.0, least=2, extend=extend)) == 4
    assert asked == [(0.010, [0.010] * number) for number in (2, 3, 4)]

"""Blame: lines of the user's, whatever they call."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from stoker.diagnose import profilers as module
from stoker.diagnose.hooks import BACKWARD, NAMES, NEXT, StepHooks, StepTimes
from stoker.diagnose.loops import Source, batches_of_workers
from stoker.diagnose.measurements import Blame, SourceLine
from stoker.diagnose.profilers import OtherThreads, Sampler
from stoker.diagnose.session import Session
from stoker.diagnose.windows import measure_all, profile_batches


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_time_goes_to_the_line_that_runs_by_phase(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, hooks = Clock(), StepHooks()
    monkeypatch.setattr(module, "now_ns", clock)
    sampler = Sampler(hooks)
    hooks.phase = NEXT
    clock.now += 30
    sampler.sample(sys._getframe())
    clock.now += 10
    sampler.sample(sys._getframe())
    hooks.phase = BACKWARD
    clock.now += 1000
    sampler.sample(None)
    blames = sampler.blames()
    assert list(blames) == ["next"]
    assert [blame.share for blame in blames["next"]] == [0.75, 0.25]
    assert blames["next"][0].place.function == "test_time_goes_to_the_line_that_runs_by_phase"


@pytest.fixture
def free_timer() -> Iterator[None]:
    """The timer that limits the time of tests is put away meanwhile."""
    handler, (left, interval) = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left, interval)


def test_a_sample_does_not_interrupt_another(free_timer: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a thread that holds the interpreter a sample takes longer than the time between two."""
    sampler, depths = Sampler(), [0]

    def slow(frame: object) -> None:
        depths.append(depths[-1] + 1)
        time.sleep(0.005)
        depths.append(depths[-1] - 1)

    monkeypatch.setattr(sampler, "sample", slow)
    with sampler:
        while len(depths) < 9:
            time.sleep(0.001)
    assert set(depths) == {0, 1}


def test_a_timer_of_the_programs_own_is_not_touched(free_timer: None) -> None:
    def own(*_: object) -> None:
        pass

    signal.signal(signal.SIGALRM, own)
    with Sampler():
        assert signal.getitimer(signal.ITIMER_REAL)[1] == 0
        assert any(thread.name == "stoker-sampler" for thread in threading.enumerate())
    assert signal.getsignal(signal.SIGALRM) is own


def test_a_thread_that_computes_and_the_sleep_of_this_one_are_seen() -> None:
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin, name="spinner", daemon=True)
    thread.start()
    try:
        watched = OtherThreads()
        time.sleep(0.1)
        asleep, busiest = watched.end()
    finally:
        stop.set()
        thread.join()
    assert asleep > 0.5
    assert busiest is not None
    assert (busiest.name, busiest.share > 0) == ("spinner", True)
    assert busiest.place is None or "spin" in busiest.place.function
    quiet = OtherThreads()
    assert all(one.name != "spinner" for one in [quiet.end()[1]] if one is not None)


def test_a_loop_that_waits_for_its_next_item_is_seen() -> None:
    def chunks(sampler: Sampler) -> Iterator[int]:
        sampler.sample(sys._getframe())
        yield 1

    def validate(sampler: Sampler) -> None:
        sampler.sample(sys._getframe())

    found = []
    for work in (lambda sampler: list(chunks(sampler)), validate):
        sampler = Sampler(slow_from=0.0)
        work(sampler)
        sampler.end_step(StepTimes((0,) * len(NAMES), True))
        found.append(sampler.rare_line())
    assert found[0] is not None
    assert found[0].iterated is not None
    assert found[0].iterated.function.endswith("<lambda>"), "the line that asks for the items"
    assert found[1] is not None
    assert found[1].iterated is None, "the control: a function that is called gives no items"


# ---- lines that make batches, found by making some in this process where workers make them ----

LINE = Blame(place=SourceLine(file="train.py", line=3, function="batches"), share=0.9)


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, number: int) -> torch.Tensor:
        for _ in range(20_000):
            pass
        return torch.full((2,), float(number))


class Batches(Rows):
    """The same, as whole batches."""

    def __getitems__(self, numbers: list[int]) -> list[torch.Tensor]:
        return [self[number] + 100 for number in numbers]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from torch.arange(3.0)


class InWorkers(Rows):
    def __getitem__(self, number: int) -> torch.Tensor:
        raise RuntimeError("no connection")


@pytest.mark.parametrize(
    ("loader", "batches"),
    [
        (DataLoader(Rows(), batch_size=4), [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]),
        (DataLoader(Rows(), batch_size=4, num_workers=2), [[0, 1, 2, 3], [4, 5], [0, 1, 2, 3]]),
        (DataLoader(Batches(), batch_size=4), [[100, 101, 102, 103], [104, 105]]),
        (DataLoader(Rows(), batch_size=None), [0, 1, 2]),
        (DataLoader(Stream(), batch_size=2), [[0, 1], [2], [0, 1]]),
        (DataLoader(Stream(), batch_size=None, num_workers=1), [0, 1, 2, 0]),
    ],
)
def test_batches_of_this_process_are_those_of_the_loader_pass_after_pass(loader: DataLoader[Any], batches: list[Any]) -> None:
    made = batches_of_workers(loader, 0)
    for expected in batches:
        batch = next(made)
        assert (batch if isinstance(loader.dataset, Stream) else batch[..., 0]).tolist() == expected


def session_over(iterable: Any) -> Session:
    session = Session(measure_all, on_done=lambda: None, pace=0.1)
    session.sources.training = Source(iterable, None)
    session.sources.training.gives_batches = True
    session.recorder.blames = {"next": [LINE]}
    return session


def test_the_lines_that_make_a_batch_of_workers_are_sampled_in_this_process() -> None:
    session = session_over(DataLoader(Rows(), batch_size=4, num_workers=2))
    profile_batches(session)
    lines = session.recorder.batch_lines
    assert lines[0].place.file.endswith("test_profilers_sampler.py")
    assert 0.5 < sum(line.share for line in lines) <= 1.0
    assert (session.recorder.batch_seconds or 0.0) > 0


def test_without_workers_they_are_those_in_which_the_loop_waited_for_its_batch() -> None:
    session = session_over(DataLoader(Rows(), batch_size=4))
    profile_batches(session)
    assert session.recorder.batch_lines == [LINE]
    assert session.recorder.batch_seconds is None
    session = session_over([torch.ones(3)])  # it makes nothing
    profile_batches(session)
    assert session.recorder.batch_lines == []


def test_a_dataset_that_works_in_its_workers_only_is_noted() -> None:
    session = session_over(DataLoader(InWorkers(), batch_size=4, num_workers=2))
    profile_batches(session)
    assert "no connection" in session.recorder.notes[0]
    assert session.recorder.batch_lines == []

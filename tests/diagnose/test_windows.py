"""Measurement windows, without running a program."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.diagnose.fake_cuda import FakeCuda
from tests.diagnose.measured import changed, on_cpu

from stoker._clock import now_ns
from stoker.diagnose import windows
from stoker.diagnose.division import Division
from stoker.diagnose.hooks import BACKWARD, FORWARD, OPTIMIZER, REST, StepTimes
from stoker.diagnose.session import REAL, Plan, Session
from stoker.diagnose.windows import measure_all, other_threads


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("given", [1, 2, 8])
def test_numbers_of_threads_are_tried_from_whatever_the_program_has(given: int) -> None:
    """The first one that is tried need not be the program's own."""
    session = Session(measure_all, on_done=lambda: None)
    session.recorder.cores = 2
    torch.set_num_threads(given)
    plan = other_threads(session)
    assert next(plan) == REAL
    assert torch.get_num_threads() == 1
    plan.close()
    assert torch.get_num_threads() == given


@pytest.mark.parametrize(("slow", "steps"), [(8.0, 1), (0.9, 4)], ids=["seconds", "less"])
def test_threads_with_which_a_step_takes_seconds_are_tried_for_one_step(slow: float, steps: int) -> None:
    """Two threads beside one that holds the interpreter lock took eight seconds for a step of half a second."""
    session = Session(measure_all, on_done=lambda: None, pace=1e-9)
    session.recorder.cores = 2
    session.recorder.loop.windows.append([times(0.2)] * 12)
    torch.set_num_threads(1)
    plan, with_threads = other_threads(session), []
    window = next(plan).window
    with contextlib.suppress(StopIteration):
        while True:
            with_threads.append(torch.get_num_threads())
            step = times(slow if with_threads[-1] == 2 else 0.2)
            if window is None or window.add(step):
                window = plan.send(step).window
    assert with_threads == [1] * 4 + [2] * steps + [1] * 4, "not again in reverse: they are far slower"
    assert session.recorder.by_threads == {1: 0.2, 2: slow}


def drive(session: Session, plan: Plan, cuda: FakeCuda) -> int:
    """Run steps of 10 ms on the host and 3.5 ms on the device; returns how many there were."""
    step_input, steps = next(plan), 0
    try:
        while True:
            if step_input.before is not None:
                step_input.before()
            for phase, host, busy in ((FORWARD, 4.0, 1.0), (BACKWARD, 4.0, 2.0), (OPTIMIZER, 2.0, 0.5)):
                session.hooks.enter(phase)
                cuda.issue(host=host, device=busy)
            session.hooks.enter(REST)
            steps += 1
            session.hooks.end_step()
            if step_input.window is None or step_input.window.add(times(0.010)):
                step_input = plan.send(times(0.010))
    except StopIteration:
        return steps


def times(seconds: float) -> StepTimes:
    return StepTimes((0, 0, 0, 0, 0, int(seconds * 1e9)), False)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Session, FakeCuda]:
    session, cuda = Session(measure_all, on_done=lambda: None), FakeCuda()
    session.device, session.begin_ns = "cuda", now_ns()
    monkeypatch.setattr("stoker.diagnose.hooks.cuda", cuda)
    return session, cuda


def test_a_gpu_is_measured_alone(on_gpu: tuple[Session, FakeCuda], monkeypatch: pytest.MonkeyPatch) -> None:
    session, cuda = on_gpu
    monkeypatch.setattr(windows, "gpu_taken", lambda: 0.1)
    assert drive(session, windows.device_alone(session), cuda) == 2 + windows.DEVICE_STEPS
    assert [step.seconds for step in session.recorder.device_only] == pytest.approx([0.0035] * windows.DEVICE_STEPS)
    assert session.recorder.gpu_taken == 0.1


def test_steps_of_a_gpu_are_timed_on_its_timeline(on_gpu: tuple[Session, FakeCuda]) -> None:
    session, cuda = on_gpu
    drive(session, session.record(REAL, 0.0, 6, session.recorder.loop), cuda)
    assert session.recorder.loop.seconds()[1:] == pytest.approx([0.010] * 5), "the device waits for the host"
    assert session.recorder.on_gpu


@pytest.mark.parametrize(("left", "alone"), [(0.99, []), (0.5, ["between", "callbacks", "copies", "reads"])])
def test_each_suspect_is_removed_alone_where_all_together_save_something(
    on_gpu: tuple[Session, FakeCuda], left: float, alone: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, asked = on_gpu[0], list[str]()

    def gain(session: Session, name: str, fix: object, **options: object) -> Iterator[None]:
        asked.append(name)
        session.recorder.removed[name] = changed(10.0, 10.0 * left)
        yield from ()

    monkeypatch.setattr(windows, "fix_gain", gain)
    monkeypatch.setattr(Session, "out_of_time", False)
    list(windows.removals(session))
    assert asked[0] == "everything"
    assert sorted(asked[1:]) == alone


@pytest.mark.parametrize(("seconds", "rounds"), [(0.01, 4), (0.2, 2), (3.0, 2)])
def test_suspects_of_long_steps_are_removed_in_fewer_rounds(
    on_gpu: tuple[Session, FakeCuda], seconds: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, asked = on_gpu[0], list[Any]()
    session.recorder.loop.windows.append([times(seconds)] * 12)
    monkeypatch.setattr(windows, "fix_gain", lambda *_, rounds: iter(asked.append(rounds) or ()))
    list(windows.removals(session))
    assert set(asked) == {rounds}
    asked.clear()
    monkeypatch.setattr(Session, "late", True)
    list(windows.removals(session))
    assert not asked, "there is no time left"


# ---- the order of measurement windows ----


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The names of all windows in the order in which a device has them."""

    def run(device: Any) -> list[str]:
        names: list[str] = []

        def noted(name: str) -> Any:
            def window(*args: Any, **options: Any) -> Any:
                names.append(name + (" repeats" if session.repeats else ""))
                return iter(())

            return window

        loop = ("warm_up", "phases", "baseline", "rare_steps", "with_core", "without_data", "other_threads")
        for name in (*loop, "lines", "operations", "operation_times", "removals", "device_alone", "profile_batches"):
            monkeypatch.setattr(windows, name, noted(name))
        monkeypatch.setattr(windows, "tell_progress", lambda session: names.append("progress"))
        monkeypatch.setattr(windows, "measure_fixes", noted("measure_fixes"))
        monkeypatch.setattr(windows, "find_ranks", lambda: None)
        monkeypatch.setattr(windows, "so_far", lambda session: on_cpu())
        session = Session(measure_all, on_done=lambda: None)
        session.device = device
        try:
            for _ in windows.measure_all(session):
                pass
        finally:
            session.remove()
        return names

    return run


def test_what_is_known_is_sent_from_the_warm_up_on(order: Any) -> None:
    """Next to a thread that holds the interpreter lock a step takes seconds: the time limit may come in the first windows."""
    assert order("cpu")[:5] == ["warm_up", "progress", "phases", "baseline", "progress"]


@pytest.mark.parametrize("host_limits", [True, False])
def test_the_kernels_of_a_gpu_that_waits_for_its_host_are_not_profiled(
    order: Any, host_limits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a profile the host starts kernels slower."""
    monkeypatch.setattr(Session, "measurements", lambda session, machine=None: None)
    monkeypatch.setattr(windows, "divide", lambda measured: Division(step=1.0, parts={"launch": 0.5 * host_limits}))
    names = [name for name in order("cuda") if name != "progress"]
    profiled = [] if host_limits else ["operation_times"]
    assert names[names.index("removals") :] == ["removals", "device_alone", "profile_batches", *profiled, "measure_fixes"]


def test_on_a_busy_cpu_the_likely_cause_comes_first(order: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calm = order("cpu")
    monkeypatch.setattr(windows, "is_disturbed", lambda session: True)
    busy = order("cpu")
    assert busy.count("baseline") == 1 < calm.count("baseline")
    assert {"with_core", "lines", "operations", "operation_times", "profile_batches"} <= set(busy)
    assert {"other_threads", "measure_fixes"}.isdisjoint(busy)
    assert busy[-1] == "removals" != calm[-1]


def test_a_loop_that_waits_for_the_interpreter_lock_is_not_run_with_other_threads(
    order: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "other_threads" in order("cpu")
    monkeypatch.setattr(windows, "waits_for_interpreter", lambda measured: True)
    assert "other_threads" not in order("cpu")

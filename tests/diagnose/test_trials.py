"""A trial: what is seeded, what is measured on a GPU, and how fixes that need one go about it; a pretended GPU is enough."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from torch import nn

from stoker.diagnose.experiments.compile import Compile
from stoker.diagnose.hooks import StepTimes
from stoker.diagnose.session import REAL
from stoker.diagnose.trials import CHUNKS, LEAST_CHUNK, LEAST_STEPS, TrialSession, peak_bytes


def driven(session: TrialSession, times: list[StepTimes], seconds: list[float]) -> int:
    plan = session._chunks(REAL, 0.0, seconds)
    next(plan)
    for number, one in enumerate(times):
        try:
            plan.send(one)
        except StopIteration:
            return number + 1
    raise AssertionError("it does not end")


def session_of(turns: list[list[float]]) -> TrialSession:
    """A session that is asked for two stretches."""

    def turn(seconds: list[float]) -> float:
        turns.append(seconds)
        return 0.01 if len(turns) < 3 else 0.0

    return TrialSession(on_done=lambda: None, fix=None, turn=turn)


def test_steps_of_a_gpu_are_timed_several_between_two_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    seconds: list[float] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    step = StepTimes((0,) * 6, False)
    assert driven(session_of([]), [step] * 100, seconds) == LEAST_CHUNK * (1 + CHUNKS)
    assert (len(seconds), len(waits)) == (CHUNKS, 2 + CHUNKS)


@pytest.mark.parametrize(("every", "kept"), [(100, CHUNKS), (8, CHUNKS - 1), (2, CHUNKS)], ids=["never", "once", "always"])
def test_steps_of_a_gpu_in_which_an_epoch_ends_are_left_out_unless_all_do(
    every: int, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    seconds: list[float] = []
    driven(session_of([]), [StepTimes((0,) * 6, number % every == every - 1) for number in range(12)] * 2, seconds)
    assert len(seconds) == kept


def test_a_trial_gives_a_measurement_window_when_it_is_asked_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[list[float]] = []
    session = session_of(turns)
    monkeypatch.setattr(session, "short_steps", False)
    plan = session.windows()
    window = next(plan).window
    step = StepTimes((10_000_000,) * 6, False)
    with contextlib.suppress(StopIteration):
        for _ in range(100_000):
            if window is None or window.add(step):
                window = plan.send(step).window
    assert turns[0] == []
    assert [set(one) for one in turns[1:]] == [{0.06}, {0.06}]
    assert all(len(one) >= LEAST_STEPS for one in turns[1:])


def test_memory_of_the_process_is_known() -> None:
    assert (peak_bytes("cpu") or 0) > 10 << 20


def test_modules_with_weights_are_compiled_and_their_hooks_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []

    def pretend(function: Any, mode: str | None = None) -> Any:
        compiled.append((function, mode))
        return function

    monkeypatch.setattr(torch, "compile", pretend)
    model = nn.Linear(3, 2)
    Compile().begin([model, nn.MSELoss()], None)
    assert compiled == [(nn.Linear.forward.__get__(model), None)]
    Compile(1).begin([nn.Linear(3, 2)], None)
    assert compiled[1][1] == "reduce-overhead"
    frozen = Compile()
    frozen.begin([nn.MSELoss()], None)
    assert not frozen.used

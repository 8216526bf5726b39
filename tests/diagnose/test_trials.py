"""Trials: each advice gets its result; what is seeded, what is measured on a GPU (pretended), and how a process fails."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from tests.diagnose.fake_process import FakeProcess
from tests.diagnose.findings import on_gpu
from tests.diagnose.measured import on_cpu
from torch import nn

from stoker.diagnose import wording
from stoker.diagnose.advice import value_of
from stoker.diagnose.comparison import compare_losses
from stoker.diagnose.experiments.compile import Compile
from stoker.diagnose.hooks import StepTimes
from stoker.diagnose.measurements import Advice
from stoker.diagnose.session import REAL
from stoker.diagnose.trials import CHUNKS, LEAST_CHUNK, LEAST_STEPS, TrialProcess, TrialSession, peak_bytes, try_advice


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


# ---- what a finding gets ----


def test_fixes_are_tried_with_the_number_that_is_advised() -> None:
    measured = on_cpu(fewer_threads={"1": 0.003, "2": 0.0098})
    assert value_of("threads", measured, "oversubscribed") == 1
    assert value_of("threads", on_cpu(), "data") == 2
    assert value_of("workers", measured, "data") == 1
    assert (value_of("compile", measured, "launch"), value_of("compile", measured, "memory")) == (1, None)


def test_a_finding_gets_the_results_of_its_advice() -> None:
    names = ["feed", "cached", "host", "workers"]
    finding = msgspec.structs.replace(
        on_gpu(), next=[Advice(name=name, sentence=name, predicted=2.0) for name in names], verdict="memory"
    )
    seconds = {"feed": 0.5, "cached": 0.4, "workers": 2.0, "sdpa": 0.8}
    told: list[str] = []

    def run(*words: Any, fix: str | None, value: int | None, limit_seconds: float) -> Any:
        losses = {"losses": [2.0]} if fix == "workers" else {}
        return FakeProcess(seconds.get(fix or "", 1.0), **losses)  # type: ignore[arg-type]

    after = try_advice(finding, "train.py", run=run, tell=told.append)
    assert told[:3] == ["measuring the baseline", "measuring the baseline", "trying feed"]
    by_name = {step.name: step for step in after.next}
    assert list(by_name) == [*names, "sdpa"]  # what was not proposed is told where it helps
    assert by_name["host"].tried is None
    tried = {name: step.tried for name, step in by_name.items() if step.tried is not None}
    assert tried["feed"].speedup == pytest.approx(2.0)
    assert (tried["feed"].losses, tried["feed"].peak_bytes) == ("equal", 1000)
    assert tried["workers"].losses == "changed"
    for name in ("cached", "feed"):  # the trial did something else than the advice says
        assert by_name[name].sentence == name + wording.TRIED_AS[name]
    assert by_name["workers"].sentence == "workers"


def test_without_measurements_nothing_is_tried() -> None:
    finding = msgspec.structs.replace(on_gpu(), measurements=None)
    assert try_advice(finding, "train.py", run=pytest.fail) is finding


@pytest.mark.promise("P17")
@pytest.mark.parametrize(("tried_ms", "told"), [(10.0, False), (10.5, False), (12.0, True), (8.0, True)])
def test_a_machine_that_has_changed_its_speed_since_is_reported(tried_ms: float, told: bool) -> None:
    measured = on_cpu()
    base = measured.loop.median * tried_ms / 10
    finding = msgspec.structs.replace(
        on_gpu(), measurements=measured, verdict="optimizer", next=[Advice(name="fused", sentence="fused", predicted=2.0)]
    )
    after = try_advice(finding, "train.py", run=lambda *words, fix, **options: FakeProcess(base * (0.5 if fix else 1.0)))
    assert after.next[0].tried is not None
    assert after.next[0].tried.step_seconds == pytest.approx(base)
    notes = after.measurements.notes if after.measurements is not None else []
    assert any("when fixes were tried" in note for note in notes) == told


# ---- processes ----

PROGRAM = """
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for _ in range(1000):
    for x, y in DataLoader(data, batch_size=8, shuffle=True):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
"""


@pytest.mark.slow  # two processes that import torch
def test_a_program_without_a_seed_gives_the_same_losses_in_each_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM)
    base, tried = (TrialProcess(program, fix=fix, quiet=True, limit_seconds=280) for fix in (None, "feed"))
    assert base.is_ready()
    assert tried.is_ready()
    for process in (base, tried, base):
        stretch = process.stretch(0.01)
        assert stretch is not None
        assert len(stretch.seconds) >= 4
    base.end()
    tried.end()
    assert (base.error, tried.error) == (None, None)
    assert compare_losses([base.losses], tried.losses, 1e-3) == ("equal", 0.0)
    assert len(base.losses) >= 6
    assert (base.peak_bytes or 0) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_what_goes_wrong_in_a_process_is_reported(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("raise ValueError('no data')")
    running = TrialProcess(program, quiet=True, limit_seconds=280)
    assert not running.is_ready()
    assert running.stretch(0.01) is None
    assert "raised ValueError: no data" in str(running.error)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("import os; os._exit(3)", "exited with code 3"),
        pytest.param("import time; time.sleep(60)", "took more than 3 s", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_says_nothing_is_reported(text: str, told: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(text)
    running = TrialProcess(program, quiet=True, limit_seconds=3.0 if "sleep" in text else 280.0)
    running.end()
    assert told in str(running.error)

"""Fixes that are switched on and off in a running program: by a clock that ticks when it is told to, what each gives is exact."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from tests.diagnose.clock import MACHINE, Clock, install_clock
from tests.diagnose.measured import on_cpu, on_gpu
from tests.diagnose.measuring import measure_script, measure_step
from torch.utils.data import DataLoader, TensorDataset

from stoker.diagnose import api, windows
from stoker.diagnose.child import Answer, Child, Request
from stoker.diagnose.experiments.fused import Fused
from stoker.diagnose.loops import LONGER_EPOCHS, batches_of_workers
from stoker.diagnose.measurements import Measurements
from stoker.diagnose.recorder import Recorder
from stoker.diagnose.rule import conclude
from stoker.diagnose.session import Session
from stoker.diagnose.windows import fixes_wanted, measure_all, variants


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(Recorder, "add_waiting", lambda self, waiting: None)  # a busy machine is another matter
    return install_clock(monkeypatch)


def measured_with(clock: Clock, optimizer_ticks: Callable[[Any], int], data_ticks: int = 0, pace: float = 0.2) -> Measurements:
    class SGD(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            clock.tick(optimizer_ticks(self))
            return super().step(closure)

    class Rows(TensorDataset):
        def __getitem__(self, number: int) -> Any:
            clock.tick(data_ticks)
            return super().__getitem__(number)

    net = torch.nn.Linear(4, 1)
    optimizer = SGD(net.parameters(), lr=1e-6)

    def train_step(batch: list[torch.Tensor]) -> None:
        loss = net(batch[0]).sum()
        clock.tick(20)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    measured = measure_step(train_step, DataLoader(Rows(torch.randn(400, 4)), batch_size=5), pace=pace)
    assert optimizer.param_groups[0]["fused"] is None
    return measured


def fused_or_not(optimizer: Any) -> int:
    return 6 if optimizer.param_groups[0]["fused"] else 30


@pytest.mark.promise("P17")
def test_a_fused_optimizer_is_measured_in_the_program_itself(clock: Clock) -> None:
    measured = measured_with(clock, fused_or_not)
    what_if = measured.what_ifs["fused"]
    assert (set(what_if.as_it_is.seconds), set(what_if.with_fix.seconds)) == ({0.050}, {0.026})
    step = next(step for step in conclude(measured).next if step.name == "fused")
    assert step.predicted == pytest.approx(50 / 26)


@pytest.mark.promise("P17")
def test_a_gain_that_varies_is_measured_in_more_rounds(clock: Clock) -> None:
    calls = {"fused": 0}

    def varying(optimizer: Any) -> int:
        if not optimizer.param_groups[0]["fused"]:
            return 30
        calls["fused"] += 1
        return 6 + calls["fused"] // 7 % 3 * 10  # another speed in each window: seven steps, of which four count

    steady = measured_with(clock, fused_or_not, pace=2.0).what_ifs["fused"]
    unsteady = measured_with(clock, varying, pace=2.0).what_ifs["fused"]
    assert len(steady.with_fix.pieces) < len(unsteady.with_fix.pieces)
    assert len(unsteady.as_it_is.pieces) == len(unsteady.with_fix.pieces)


def test_batches_gathered_at_once_are_measured_in_the_program_itself(clock: Clock) -> None:
    measured = measured_with(clock, lambda optimizer: 1, data_ticks=10)
    assert set(measured.what_ifs["feed"].with_fix.seconds) == {0.021}
    step = next(step for step in conclude(measured).next if step.name == "feed")
    assert step.predicted == pytest.approx(71 / 21)


def test_batches_of_workers_are_measured_in_the_program_itself(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers have a batch ready at each step, and handing it over takes 3 ms."""
    asked: list[int] = []

    def made_elsewhere(loader: DataLoader[Any], workers: int) -> Iterator[Any]:
        asked.append(workers)
        batches = [[torch.randn(5, 4)] for _ in range(4)]
        while True:
            for batch in batches:
                clock.tick(3)
                yield batch

    monkeypatch.setattr("stoker.diagnose.experiments.workers.batches_of_workers", made_elsewhere)
    measured = measured_with(clock, lambda optimizer: 1, data_ticks=10)
    assert asked == [1], "of two cores, the training keeps one"
    what_if = measured.what_ifs["workers"]
    assert (set(what_if.as_it_is.seconds), set(what_if.with_fix.seconds)) == ({0.071}, {0.024})
    step = next(step for step in conclude(measured).next if step.name == "workers")
    assert step.predicted == pytest.approx(71 / 24)


def test_a_dataset_that_does_not_work_in_workers_has_no_prediction_for_them(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(loader: DataLoader[Any], workers: int) -> Iterator[Any]:
        raise RuntimeError("cannot pickle a connection")
        yield

    monkeypatch.setattr("stoker.diagnose.experiments.workers.batches_of_workers", fails)
    measured = measured_with(clock, lambda optimizer: 1, data_ticks=10)
    assert "the gain of workers could not be measured: RuntimeError: cannot pickle a connection" in measured.notes
    step = next(step for step in conclude(measured).next if step.name == "workers")
    assert step.predicted is None
    assert step.predicted_high is not None, "a bound is known all the same"


@pytest.mark.parametrize(("now", "workers"), [(0, 1), (1, 0)])
def test_batches_of_workers_are_those_of_the_loader_pass_after_pass(now: int, workers: int) -> None:
    loader = DataLoader(TensorDataset(torch.arange(12)), batch_size=4, num_workers=now)
    batches = batches_of_workers(loader, workers)
    try:
        found = [next(batches)[0].tolist() for _ in range(5)]
    finally:
        batches.close()  # type: ignore[attr-defined]
    once = [batch[0].tolist() for batch in loader]
    assert found == [*once, *once[:2]]


def test_a_fix_that_lasts_is_measured_after_steps_without_it(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[bool] = []

    def keep_memory() -> bool:
        kept.append(True)
        return True

    monkeypatch.setattr("stoker.diagnose.experiments.memory.keep_memory", keep_memory)
    monkeypatch.setattr("stoker.diagnose.windows.fixes_wanted", lambda session, measured: ["malloc"])
    assert "malloc" not in measured_with(clock, lambda optimizer: 20 if kept else 30).what_ifs
    assert not kept, "the process of `diagnose_step` is the user's own"
    of_script = functools.partial(Session, step_per_batch=False)
    monkeypatch.setattr(
        "stoker.diagnose.session.Session", lambda plan, **given: of_script(plan, on_done=given["on_done"], pace=0.2)
    )
    measured = measured_with(clock, lambda optimizer: 20 if kept else 30)
    what_if = measured.what_ifs["malloc"]
    assert (set(what_if.as_it_is.seconds), set(what_if.with_fix.seconds)) == ({0.050}, {0.040})
    assert kept == [True], "once, as it cannot be undone"


def test_a_fix_that_fails_costs_its_prediction_and_nothing_else(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fix: Fused) -> None:
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(Fused, "install", fail)
    measured = measured_with(clock, fused_or_not)
    assert "the gain of fused could not be measured: RuntimeError: no such kernel" in measured.notes
    assert conclude(measured).verdict == "optimizer"
    assert "fused" not in measured.what_ifs


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[Child]:
    """A run of a program that raises an error, in the process of the test, which stays as it is."""
    child = Child(Request(program="train.py"), connection=None)  # type: ignore[arg-type]

    def raises(*arguments: object, **options: object) -> None:
        raise ValueError("a batch has 8 rows")

    monkeypatch.setattr("stoker.diagnose.child.rewrite_imports", lambda sources: None)
    monkeypatch.setattr("stoker.diagnose.child.OtherProcesses.install", lambda others: None)
    monkeypatch.setattr(os, "_exit", os._exit)  # which it replaces
    monkeypatch.setattr("stoker.diagnose.child.run_main", raises)
    yield child
    child.session.remove()


def test_a_program_that_raises_with_a_fix_has_its_verdict_all_the_same(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    ends: list[str | None] = []
    monkeypatch.setattr(child, "_end", ends.append)
    child.run()
    child.session.fix_on = "batch"
    child.session.remove()
    child.run()
    assert str(ends[0]).endswith("raised ValueError: a batch has 8 rows")  # without the guard
    assert ends[1] is None
    assert child.session.recorder.notes[0].startswith("the gain of batch could not be measured: train.py")


def test_a_program_that_raises_before_all_is_measured_asks_for_another_run(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    def leave(answer: Answer) -> None:
        raise SystemExit(answer.repeat_without, answer.error)

    monkeypatch.setattr(child, "_leave_with", leave)
    child.session.fix_on, child.session.repeats = "graph", True
    with pytest.raises(SystemExit) as left:
        child.run()
    fix, error = left.value.args
    assert fix == "graph"
    assert error.startswith("the gain of graph could not be measured: train.py")


@pytest.mark.promise("P17")
def test_a_program_that_fails_with_longer_epochs_is_run_again_with_its_own(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[Answer] = []

    def leave(answer: Answer) -> None:
        left.append(answer)
        raise SystemExit

    monkeypatch.setattr(child, "_leave_with", leave)
    monkeypatch.setattr(child, "_end", lambda failure: left.append(Answer(error=failure)))
    child.run()  # negative control: as long as epochs are the program's own, the error is, too
    child.session.remove()
    child.session.make_endless()
    with pytest.raises(SystemExit):
        child.run()
    assert [answer.repeat_without for answer in left] == [None, LONGER_EPOCHS]
    child.session.lengthens_epochs = False


@pytest.mark.promise("P17")
def test_a_program_is_run_again_without_the_fix_that_it_failed_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    asked: list[tuple[str, ...]] = []
    failed = "the gain of graph could not be measured: train.py raised RuntimeError: no memory."

    def run_child(sandbox: Any, request: Request, *args: Any, **options: Any) -> Answer:
        asked.append(request.avoid)
        if "graph" in request.avoid:
            return Answer(measurements=on_cpu(notes=["all of it"]))
        return Answer(error=failed, repeat_without="graph")

    monkeypatch.setattr(api, "run_child", run_child)
    measured = measure_script(tmp_path / "train.py", with_compile=True)
    assert asked == [(), ("graph",)]
    assert measured.notes[:2] == [failed, "all of it"]
    measure_script(tmp_path / "train.py")
    assert asked[2:] == [("compile",), ("compile", "graph")]


def test_compiled_steps_are_measured_where_it_is_asked_for(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    fast = [False]

    def compile_model(forward: Any, mode: str | None = None) -> Any:
        made.append(forward)
        clock.tick(60_000)  # a minute

        def compiled(*args: Any) -> Any:
            fast[0] = True
            return forward(*args)

        return compiled

    def ticks(optimizer: Any) -> int:
        spent = 10 if fast[0] else 30
        fast[0] = False
        return spent

    monkeypatch.setattr(torch, "compile", compile_model)
    monkeypatch.setattr(windows, "fixes_wanted", lambda session, measured: ["compile", "malloc"])
    monkeypatch.setattr("stoker.diagnose.experiments.memory.keep_memory", lambda: True)
    for avoid in (("compile",), ()):
        of_script = functools.partial(Session, step_per_batch=False, avoid=avoid)
        monkeypatch.setattr(
            "stoker.diagnose.session.Session", lambda plan, of=of_script, **given: of(plan, on_done=given["on_done"], pace=0.2)
        )
        measured = measured_with(clock, ticks)
        assert ("compile" in measured.what_ifs) == ("compile" not in avoid)
        assert "malloc" in measured.what_ifs, "the minute counts towards no limit"
    assert len(made) == 1, "in all rounds together"
    what_if = measured.what_ifs["compile"]
    assert (set(what_if.as_it_is.seconds), set(what_if.with_fix.seconds)) == ({0.050}, {0.030})


def wanted(measured: Measurements, batch_seconds: float | None = None) -> list[str]:
    """Return the fixes that would be measured; `batch_seconds` is what a batch takes in the process of the training."""
    return fixes_wanted(SimpleNamespace(recorder=SimpleNamespace(batch_seconds=batch_seconds)), measured)  # type: ignore[arg-type]


def test_only_what_would_be_advised_is_measured() -> None:
    roomy = msgspec.structs.replace(MACHINE, cores=4)
    assert wanted(on_cpu(next=20.0, optimizer=2.0, machine=roomy)) == ["feed", "fused", "workers"]
    assert wanted(on_cpu(next=20.0, optimizer=2.0, machine=roomy, optimizer_fused=True)) == ["feed", "workers"]
    assert "fused" not in wanted(on_cpu(optimizer=0.01))
    assert wanted(on_cpu(number=5)) == [], "no verdict, no advice"
    assert "threads" in wanted(on_cpu(fewer_threads={"1": 0.0030, "2": 0.0098}))
    assert "threads" not in wanted(on_cpu(fewer_threads={"1": 0.0098, "2": 0.0098}))
    launch = on_gpu(10.2, device=1.4, kernels=2000)
    assert {"batch", "graph", "compile"} <= set(wanted(launch))
    assert [fix.value for fix in variants(Session(measure_all, on_done=lambda: None), "compile", launch)] == [1]


@pytest.mark.parametrize("has_bf16", [True, False])
def test_autocast_is_measured_on_a_processor_that_computes_in_bfloat16(has_bf16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "has_bf16_instructions", lambda: has_bf16)
    assert ("autocast" in wanted(on_cpu())) == has_bf16
    assert "autocast" not in wanted(on_cpu(precision="bf16"))
    assert "autocast" not in wanted(on_cpu(next=80.0))

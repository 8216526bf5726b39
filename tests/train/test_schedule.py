"""Schedules: equal to those of torch where both mean the same, and pure, so that there is nothing to resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler

from stoker.errors import OptionError
from stoker.train import Constant, Cosine, Inverse, Linear, OneCycle, StepDecay
from stoker.train.schedule import Schedule, as_schedule, scheduled_rates

TOTAL = 100


def rates_of_torch(make: Callable[[torch.optim.Optimizer], Any], total: int = TOTAL) -> list[float]:
    """The factor of each update, as torch's own scheduler sets it."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler, rates = make(optimizer), []
    for _ in range(total):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


def warmup(optimizer: torch.optim.Optimizer, updates: int) -> lr_scheduler.LinearLR:
    return lr_scheduler.LinearLR(optimizer, start_factor=1 / (updates + 1), end_factor=1.0, total_iters=updates)


def in_turn(optimizer: torch.optim.Optimizer, first: Any, second: Any, at: int) -> lr_scheduler.SequentialLR:
    return lr_scheduler.SequentialLR(optimizer, [first, second], milestones=[at])


TWINS: dict[str, tuple[Schedule, Callable[[torch.optim.Optimizer], Any]]] = {
    "constant": (Constant(), lambda o: lr_scheduler.ConstantLR(o, factor=1.0)),
    "constant after warm-up": (Constant(warmup=7), lambda o: warmup(o, 7)),
    "linear": (Linear(end=0.1), lambda o: lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.1, total_iters=TOTAL)),
    "cosine": (Cosine(end=0.05), lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=TOTAL, eta_min=0.05)),
    "cosine after warm-up": (
        Cosine(warmup=0.1),
        lambda o: in_turn(o, warmup(o, 10), lr_scheduler.CosineAnnealingLR(o, T_max=TOTAL - 10), 10),
    ),
    "linear after warm-up": (
        Linear(warmup=20),
        lambda o: in_turn(o, warmup(o, 20), lr_scheduler.LinearLR(o, start_factor=1.0, end_factor=0.0, total_iters=TOTAL - 20), 20),
    ),
    "one cycle": (
        OneCycle(),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=TOTAL, final_div_factor=400, cycle_momentum=False),
    ),
    "one cycle, own shape": (
        OneCycle(warmup=0.456, start=0.5, end=0.001),
        lambda o: lr_scheduler.OneCycleLR(
            o, max_lr=1.0, total_steps=TOTAL, pct_start=0.456, div_factor=2, final_div_factor=500, cycle_momentum=False
        ),
    ),
    "steps": (StepDecay(every=30, factor=0.5), lambda o: lr_scheduler.StepLR(o, step_size=30, gamma=0.5)),
    "inverse": (
        Inverse(warmup=9),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: min((step + 1) / 10, math.sqrt(10 / (step + 1)))),
    ),
}


@pytest.mark.parametrize(("ours", "torchs"), TWINS.values(), ids=TWINS)
def test_schedules_equal_those_of_torch(ours: Schedule, torchs: Callable[[torch.optim.Optimizer], Any]) -> None:
    expected = rates_of_torch(torchs)
    assert [ours(step, TOTAL) for step in range(TOTAL)] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("total", [1, 2, 3])
@pytest.mark.parametrize(
    "schedule", [one for one, _ in TWINS.values()] + [OneCycle(warmup=0), Linear(warmup=1.0), Cosine(warmup=5)]
)
def test_short_training_runs_have_finite_rates(schedule: Schedule, total: int) -> None:
    assert all(0.0 <= schedule(step, total) <= 1.0 for step in range(total + 1))


def test_the_first_update_of_a_warm_up_is_not_lost() -> None:
    assert Linear(warmup=10)(0, 100) == 1 / 11
    assert Linear(warmup=10)(10, 100) == 1.0


@pytest.mark.parametrize("schedule", [Linear(), Cosine(), OneCycle(), Constant(warmup=0.1), StepDecay(every=0.5)])
def test_schedules_that_need_the_end_say_so(schedule: Schedule) -> None:
    with pytest.raises(OptionError, match=f"{type(schedule).__name__} needs the number of all updates"):
        schedule(3, None)


def test_a_plain_function_is_a_schedule_and_its_values_are_checked() -> None:
    assert as_schedule(lambda step, total: 0.5)(3, None) == 0.5
    assert as_schedule(None)(3, None) == 1.0
    assert as_schedule(Cosine()) == Cosine()
    with pytest.raises(OptionError, match="schedule gave nan for update 3"):
        as_schedule(lambda step, total: math.nan)(3, None)
    with pytest.raises(OptionError, match="expected Linear"):
        as_schedule("cosine")
    with pytest.raises(OptionError, match="expected Linear"):
        as_schedule(Cosine)


def optimizer_of(*rates: float) -> torch.optim.Optimizer:
    return torch.optim.SGD([{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates], lr=1.0)


LIKE_TORCH: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "ConstantLR": st.fixed_dictionaries({"factor": st.floats(0.1, 1), "total_iters": st.integers(0, 20)}),
    "CosineAnnealingLR": st.fixed_dictionaries({"T_max": st.integers(1, 40), "eta_min": st.sampled_from([0.0, 0.1])}),
    "CosineAnnealingWarmRestarts": st.fixed_dictionaries(
        {"T_0": st.integers(1, 9), "T_mult": st.integers(1, 3), "eta_min": st.just(0.1)}
    ),
    "ExponentialLR": st.fixed_dictionaries({"gamma": st.floats(0.5, 1.1)}),
    "LinearLR": st.fixed_dictionaries(
        {"start_factor": st.floats(0.1, 1), "end_factor": st.floats(0, 1), "total_iters": st.integers(1, 30)}
    ),
    "MultiStepLR": st.fixed_dictionaries(
        {"milestones": st.lists(st.integers(1, 30), max_size=4).map(sorted), "gamma": st.floats(0.1, 1)}
    ),
    "PolynomialLR": st.fixed_dictionaries({"total_iters": st.integers(1, 30), "power": st.floats(0.5, 3)}),
    "StepLR": st.fixed_dictionaries({"step_size": st.integers(1, 9), "gamma": st.floats(0.1, 1)}),
}


@pytest.mark.promise("P13")
@pytest.mark.parametrize("kind", LIKE_TORCH)
@given(data=st.data())
@settings(max_examples=15, deadline=None)
def test_schedulers_of_torch_that_are_functions_of_the_step_equal_torch(kind: str, data: st.DataObject) -> None:
    optimizer, options = optimizer_of(0.5), data.draw(LIKE_TORCH[kind])
    scheduler = getattr(lr_scheduler, kind)(optimizer, **options)
    ours = as_schedule(scheduler)
    assert scheduled_rates(scheduler, optimizer) == (0.5,)
    for step in range(45):
        assert 0.5 * ours(step, None) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6, abs=1e-9)
        optimizer.step()
        scheduler.step()


def test_a_lambda_of_torch_is_a_schedule() -> None:
    optimizer = optimizer_of(0.5, 2.0)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, step / 10))
    assert [as_schedule(scheduler)(step, None) for step in (0, 5, 20)] == [0.0, 0.5, 1.0]
    assert scheduled_rates(scheduler, optimizer) == (0.5, 2.0), "those before the scheduler changed them"
    with pytest.raises(OptionError, match="a LambdaLR of another optimizer"):
        scheduled_rates(scheduler, optimizer_of(0.5))
    with pytest.raises(OptionError, match="a LambdaLR with 2 functions"):
        as_schedule(lr_scheduler.LambdaLR(optimizer, [lambda step: 1.0, lambda step: 0.5]))
    optimizer.step()
    scheduler.step()
    with pytest.raises(OptionError, match="a LambdaLR that has made 1 steps"):
        as_schedule(scheduler)


@pytest.mark.promise("P13")
def test_other_schedulers_of_torch_are_refused_and_ours_are_named() -> None:
    optimizer = optimizer_of(1.0)
    with pytest.raises(OptionError, match=r"ReduceLROnPlateau, which is not a function of .*early_stopping="):
        as_schedule(lr_scheduler.ReduceLROnPlateau(optimizer))
    with pytest.raises(OptionError, match=r"Give OneCycle\(\), as torch's changes the momentum"):
        as_schedule(lr_scheduler.OneCycleLR(torch.optim.SGD(optimizer.param_groups, lr=1.0, momentum=0.9), 1.0, total_steps=9))
    with pytest.raises(OptionError, match="torch's StepLR, which is a class"):
        as_schedule(lr_scheduler.StepLR)
    with pytest.raises(OptionError, match=r"Use Cosine\(end=…\)"):
        as_schedule(lr_scheduler.CosineAnnealingLR(optimizer_of(1.0, 2.0), T_max=5, eta_min=0.1))
    with pytest.raises(OptionError, match="gamma 2 overflows"):
        as_schedule(lr_scheduler.ExponentialLR(optimizer_of(1.0), gamma=2))(10**15, None)

    class Own(lr_scheduler.LambdaLR):
        """May do anything."""

    with pytest.raises(OptionError, match="torch's Own, which is not a function"):
        as_schedule(Own(optimizer, lambda step: 1.0))

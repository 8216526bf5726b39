"""What a step does: counts equal those of torch's own tools, and classes add up; kernels of a GPU are made up here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.flop_counter import FlopCounterMode

from stoker.diagnose.operations import COPY, GEMM, REDUCE, VIEWS, class_of
from stoker.diagnose.work import (
    Counting,
    Profiling,
    busy_seconds,
    kernel_shares,
    main_precision,
    optimizer_ways,
    step_shares,
    work_of,
)


class Training:
    """A small one."""

    def __init__(self, *, kind: type[torch.optim.Optimizer] = torch.optim.AdamW, **options: Any) -> None:
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 1))
        self.optimizer: Any = kind(self.model.parameters(), lr=1e-3, **options)  # type: ignore[call-arg]

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(8, 16)).square().mean().backward()
        self.optimizer.step()


def test_floating_point_work_is_that_of_torchs_own_counter() -> None:
    training = Training()
    with FlopCounterMode(display=False) as theirs:
        training.step()
    with Counting() as ours:
        training.step()
    assert ours.flops == theirs.get_total_flops() > 0
    assert dict(ours.flops_by_dtype) == {"fp32": ours.flops}
    assert main_precision(ours) == "fp32"


def test_counts_are_the_same_in_each_step() -> None:
    training, counts = Training(), []
    for _ in range(4):
        with Counting() as counted:
            training.step()
        counts.append((counted.ops, counted.flops))
    assert len(set(counts[1:])) == 1


def test_counting_can_be_entered_and_left_at_the_boundaries_of_a_loop() -> None:
    training, counting = Training(), Counting()
    for number in range(3):
        if number == 1:
            counting.__enter__()
        if number == 2:
            counting.__exit__(None, None, None)
        training.step()
    assert 0 < counting.ops < 100


def test_types_are_those_of_the_products() -> None:
    with Counting() as counted, torch.autocast("cpu", dtype=torch.bfloat16):
        functional.linear(torch.ones(4, 8), torch.ones(8, 8))
    assert dict(counted.flops_by_dtype) == {"bf16": 2 * 4 * 8 * 8}
    with Counting() as counted:
        torch.ones(4, 8, dtype=torch.float64) @ torch.ones(8, 8, dtype=torch.float64)
    assert main_precision(counted) == "fp64"


def test_attention_and_recurrent_layers_of_a_cpu_are_counted() -> None:
    query = torch.ones(1, 2, 8, 4, requires_grad=True)
    with Counting() as counted:
        functional.scaled_dot_product_attention(query, query, query).sum().backward()
    assert counted.flops == (2 + 5) * 2 * 2 * 8 * 8 * 4  # two products forward, five backward
    layer = torch.nn.LSTM(4, 6)
    with Counting() as counted:
        layer(torch.ones(5, 2, 4))[0].sum().backward()
    assert counted.flops == 3 * 2 * 5 * 2 * 4 * 6 * (4 + 6)


def test_uploads_are_counted() -> None:
    with Counting() as counted:
        torch.ones(10).to("meta")
        torch.empty(10, dtype=torch.float64, device="meta").copy_(torch.ones(10, dtype=torch.float64))
        torch.ones(10).clone()
        torch.tensor(1.0).to("meta")  # a number is no batch
    assert (counted.h2d_copies, counted.h2d_bytes) == (2, 120)


def test_classes_of_operations_do_not_overlap() -> None:
    lists = [GEMM, REDUCE, COPY, VIEWS]
    assert sum(map(len, lists)) == len(frozenset().union(*lists))
    assert [class_of(name) for name in ("aten::addmm", "aten::sum", "aten::copy_", "aten::gelu")] == [
        "gemm",
        "reduce",
        "copy",
        "elementwise",
    ]
    assert class_of("aten::view") is None
    assert class_of("Optimizer.step#AdamW.step") is None
    assert class_of("autograd::engine::evaluate_function: AddmmBackward0") is None


@pytest.mark.parametrize("steps", [1, 5])
def test_shares_of_a_step_add_up(steps: int) -> None:
    training = Training()
    training.step()
    with Profiling(steps=steps) as profiled:
        for _ in range(steps):
            training.step()
    assert sum(profiled.shares.values()) == pytest.approx(1.0)
    assert {"gemm", "elementwise", "optimizer", "other"} <= profiled.shares.keys()
    assert min(profiled.shares.values()) >= 0
    with Counting() as counted:
        training.step()
    work = work_of(counted, profiled)
    assert (work.ops, work.shares, work.kernels) == (counted.ops, profiled.shares, None)


def event(
    name: str, start: float, end: float, *, device: str = "CPU", parent: Any = None, own: float | None = None, **more: Any
) -> Any:
    kernels = [SimpleNamespace(duration=duration) for duration in more.pop("kernels", [])]
    return SimpleNamespace(
        name=name,
        time_range=SimpleNamespace(start=start, end=end),
        device_type=SimpleNamespace(name=device),
        cpu_parent=parent,
        cpu_time_total=end - start,
        self_cpu_time_total=end - start if own is None else own,
        is_user_annotation=name.startswith("Optimizer"),
        kernels=kernels,
        **more,
    )


def test_a_step_that_was_interrupted_names_nobody() -> None:
    events = []
    for number in range(5):
        begin = 100.0 * number
        slow = 60.0 if number == 3 else 0.0  # another process had the core
        events.append(event("aten::addmm", begin, begin + 30))
        events.append(event("aten::relu", begin + 30, begin + 35 + slow, own=5 + slow))
        events.append(event("Optimizer.step#SGD.step", begin + 96, begin + 100))
    shares = step_shares(events, steps=5)
    assert shares == pytest.approx({"gemm": 0.30, "elementwise": 0.05, "optimizer": 0.04, "other": 0.61})
    assert step_shares(events)["elementwise"] > 0.1  # without its steps told apart


def test_what_runs_within_the_optimizer_is_the_optimizers() -> None:
    step = event("Optimizer.step#SGD.step", 0, 60)
    inner = event("aten::_foreach_add_", 10, 50, parent=event("aten::x", 5, 55, parent=step))
    outer = event("aten::mul", 60, 100)
    assert step_shares([step, inner, outer]) == pytest.approx({"optimizer": 0.6, "elementwise": 0.4, "other": 0.0})


def test_annotations_of_a_gpu_are_no_kernels() -> None:
    """A range around the optimizer has the time of its kernels too; taken along, they would count twice."""
    step = event("Optimizer.step#AdamW.step", 0, 50, kernels=[50.0])
    update = event("aten::_fused_adamw_", 10, 40, parent=step, kernels=[30.0])
    product = event("aten::mm", 60, 70, kernels=[60.0, 10.0])
    on_device = [
        event("Optimizer.step#AdamW.step", 100, 150, device="CUDA", activity_type="gpu_user_annotation"),
        event("adamw_kernel", 110, 140, device="CUDA", activity_type="kernel"),
        event("gemm", 130, 200, device="CUDA", activity_type="kernel"),
        event("Memcpy HtoD", 300, 310, device="CUDA", activity_type="gpu_memcpy"),
    ]
    count, shares = kernel_shares([step, update, product, *on_device])
    assert (count, shares) == (3.0, {"optimizer": 0.3, "gemm": 0.7})
    assert busy_seconds(on_device) == pytest.approx(100e-6)
    assert busy_seconds([step, update]) is None


def test_ways_of_an_optimizer_leave_the_users_alone() -> None:
    training = Training()
    training.step()
    weights = [weight.detach().clone() for weight in training.model.parameters()]
    calls: list[int] = []
    handle = register_optimizer_step_post_hook(lambda *_: calls.append(1))
    try:
        ways = optimizer_ways(training.optimizer, at_most=0.01)
    finally:
        handle.remove()
    assert set(ways) == {"now", "fused"}
    assert min(ways.values()) > 0
    assert not calls
    assert all(torch.equal(before, after) for before, after in zip(weights, training.model.parameters(), strict=True))


@pytest.mark.parametrize(
    "training",
    [Training(kind=torch.optim.RMSprop), Training(fused=True)],
    ids=["no fused way", "fused already"],
)
def test_ways_that_are_none_are_not_measured(training: Training) -> None:
    training.step()
    assert optimizer_ways(training.optimizer) == {}


def test_ways_with_a_schedule_and_several_groups() -> None:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
    optimizer = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:], "lr": 0.1}], lr=1e-3, momentum=0.9)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    assert optimizer_ways(optimizer) == {}  # no gradients, no step
    for weight in weights[:2]:
        weight.grad = torch.ones(3)
    assert set(optimizer_ways(optimizer, at_most=0.01)) == {"now", "fused"}
    assert optimizer_ways(optimizer, largest_bytes=10) == {}

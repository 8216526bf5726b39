"""Counts are exact: each is what the operations of a step say, and the same whenever the step is the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pickle import loads
from typing import Any

import pytest
import torch

from stoker.gate import counts
from stoker.gate.budget import Counts
from stoker.gate.counts import StepCounter


def count(run: Callable[[], Any]) -> Counts:
    with StepCounter() as counter:
        run()
        return counter.take()


def make_step() -> Callable[[torch.Tensor], Any]:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        optimizer.step()

    return step


def test_forward_backward_and_optimizer_are_counted_with_their_flops() -> None:
    found = count(lambda: make_step()(torch.randn(4, 8)))
    assert found.kinds["aten.addmm"] == 2
    assert found.kinds["aten.mm"] == 3
    assert found.kinds["aten.threshold_backward"] == 1
    assert found.ops == sum(found.kinds.values())
    forward = 2 * 4 * 8 * 8 + 2 * 4 * 8 * 1
    assert found.flops == forward + (2 * 4 * 8 * 1) * 2 + 2 * 4 * 8 * 8  # the first layer needs no gradient of its input


def test_the_same_step_has_the_same_counts() -> None:
    step, x = make_step(), torch.randn(4, 8)
    step(x)
    with StepCounter() as counter:
        seen = []
        for _ in range(5):
            step(x)
            seen.append(counter.take())
    assert seen == [seen[0]] * 5
    assert seen[0].ops > 0


def test_allocations_are_results_in_memory_of_their_own() -> None:
    x = torch.randn(10, 10)
    assert (count(lambda: x.t()).allocations, count(lambda: x.view(100)).allocated_bytes) == (0, 0)
    assert (count(lambda: x.add_(1)).allocations, count(lambda: x.add(1)).allocations) == (0, 1)
    assert count(lambda: x.add(1)).allocated_bytes == 400
    assert count(lambda: x.max(dim=1)).allocated_bytes == 10 * 4 + 10 * 8


@pytest.mark.parametrize(
    ("run", "syncs"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).any()), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.masked_fill(x > 0, 1), 0),
        (lambda x: x[torch.tensor([0, 1])], 0),
        (lambda x: torch.nonzero(x), 1),
        (lambda x: torch.unique(x), 1),
        (lambda x: torch.where(x > 0, x, -x), 0),
        (lambda x: x.add(1).sum(), 0),
    ],
)
def test_syncs_are_where_the_host_must_know(run: Callable[[torch.Tensor], Any], syncs: int) -> None:
    x = torch.randn(6)
    assert count(lambda: run(x)).syncs == syncs


def test_a_line_is_known_by_its_text_and_found_by_its_number() -> None:
    with StepCounter() as counter:
        x = torch.ones(3).mul(2)  # this very line
        found = counter.take()
    del x
    [key] = found.places
    assert key == (
        "test_counts.py test_a_line_is_known_by_its_text_and_found_by_its_number: x = torch.ones(3).mul(2) # this very line"
    )
    assert found.places[key] == {"ops": 2, "allocations": 2, "allocated_bytes": 24}
    lines, first = inspect.getsourcelines(test_a_line_is_known_by_its_text_and_found_by_its_number)
    assert counter.lines[key].line == first + next(i for i, line in enumerate(lines) if "this very line" in line)


def take_in() -> None:
    """A tensor of another process, as a worker's batch."""
    data = bytes(ForkingPickler.dumps(torch.ones(3)))
    with StepCounter() as counter:
        loads(data)
        assert counter.take().ops == 0


def test_batches_of_workers_arrive_when_they_like_and_are_not_counted() -> None:
    take_in()


@pytest.mark.promise("P22", control=True)
def test_negative_control_arrivals_would_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts, "RECEIVING_FILE", "elsewhere")
    with pytest.raises(AssertionError):
        take_in()


def test_what_is_compiled_has_breaks_and_recompilations() -> None:
    torch._dynamo.reset()

    @torch.compile(backend="eager")
    def broken(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        print(end="")
        return x * 2

    broken(torch.ones(3))
    steady = count(lambda: broken(torch.ones(3)))
    assert steady.recompiles == 0
    assert steady.graph_breaks is not None
    assert steady.graph_breaks >= 1


@pytest.mark.gpu
def test_a_real_gpu() -> None:
    x = torch.randn(64, 64, device="cuda")
    with StepCounter() as counter:
        seen = []
        for _ in range(4):
            (x @ x).relu().sum().item()
            seen.append(counter.take())
    assert seen[1:] == [seen[1]] * 3
    assert seen[1].syncs == 1
    assert seen[1].kernels is not None
    assert seen[1].kernels >= 3
    assert seen[1].allocations >= 3

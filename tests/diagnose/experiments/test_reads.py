"""Values are read one step late, without a wait, and as before when the suspect is put back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.diagnose.experiments.samples import StepNumber

from stoker.diagnose.experiments.reads import READS, WithoutReads


def read_twice(first: float, second: float) -> list[float]:
    return [torch.tensor(value).item() for value in (first, second)]


def test_a_read_gives_the_value_of_the_same_call_one_step_before(reads: WithoutReads, clock: StepNumber) -> None:
    reads.install()
    assert read_twice(1.0, 2.0) == [1.0, 2.0]
    clock.step += 1
    assert read_twice(3.0, 4.0) == [1.0, 2.0]
    assert reads.used


def test_after_it_is_removed_values_are_fresh(reads: WithoutReads, clock: StepNumber) -> None:
    originals = {name: torch.Tensor.__dict__.get(name) for name in WithoutReads.methods}
    reads.install()
    read_twice(1.0, 2.0)
    reads.remove()
    assert {name: torch.Tensor.__dict__.get(name) for name in WithoutReads.methods} == originals
    assert read_twice(3.0, 4.0) == [3.0, 4.0]


@pytest.mark.parametrize("method", READS)
def test_every_way_to_read_a_value_is_removed(reads: WithoutReads, clock: StepNumber, method: str) -> None:
    def read(value: int) -> Any:
        return getattr(torch.tensor(value), method)()

    fresh = read(3)
    reads.install()
    read(5)
    clock.step += 1
    stale = read(3)
    if method == "cpu":  # the tensor is on the CPU already: nothing was read
        assert torch.equal(stale, fresh)
    else:
        assert stale == read(5)


def test_conversions_on_the_device_keep_no_read_fresh(reads: WithoutReads, clock: StepNumber) -> None:
    """Models of transformers convert types on the GPU many times before the loss is read."""

    def step(value: float) -> list[float]:
        for _ in range(2):
            tensor = torch.tensor(value).to(torch.float64).to(torch.float32)
        return [tensor.item(), tensor.to(torch.float64).tolist()]

    reads.install()
    assert step(1.0) == [1.0, 1.0]
    for value in (2.0, 3.0):
        clock.step += 1
        assert step(value) == [1.0, 1.0]
    assert reads.places.total() == 2


def test_reads_on_another_way_are_made(reads: WithoutReads, clock: StepNumber) -> None:
    def step(value: float, *, logs: bool) -> list[float]:
        values = [torch.tensor(value).item()]
        return [*values, *([torch.tensor(value).item()] if logs else []), torch.tensor(value + 10).item()]

    reads.install()
    assert step(1.0, logs=False) == [1.0, 11.0]
    clock.step += 1
    assert step(2.0, logs=True) == [1.0, 2.0, 12.0]
    clock.step += 1
    assert step(3.0, logs=True) == [1.0, 2.0, 12.0]


def test_a_wait_for_the_gpu_takes_no_time(clock: StepNumber, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[int] = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(1))
    reads = WithoutReads(clock)
    reads.install()
    torch.cuda.synchronize()
    reads.remove()
    assert reads.used
    assert waits == []
    torch.cuda.synchronize()
    assert waits == [1]

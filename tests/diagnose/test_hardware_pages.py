"""Pages: that they are counted where memory comes from the system, and that no prediction is sure of them."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
import torch
from tests.diagnose.measured import MS, TWO_CORES, on_cpu
from torch.utils.data import DataLoader, TensorDataset

from stoker.diagnose.api import measure_step
from stoker.diagnose.hardware import page_seconds
from stoker.diagnose.measurements import Advice, Measurements
from stoker.diagnose.rule import conclude

FRESH = """
import sys
import torch
from stoker.diagnose.hardware import keep_memory, pages_so_far
for way in ("as it is", "keep"):
    if way == "keep" and not keep_memory():
        sys.exit("no such setting")
    for number in range(6):
        if number == 3:
            before = pages_so_far()
        blocks = [torch.ones(size << 20) for size in (1, 3, 9)]
        del blocks
    print(pages_so_far() - before)
"""
"""Pages of three rounds in which 52 MiB are taken and given back, before and after the setting."""


def test_memory_that_is_kept_is_not_asked_for_again() -> None:
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, check=False)
    if "no such setting" in done.stderr:
        pytest.skip("the allocator of this machine has no such setting")
    as_it_is, kept = map(int, done.stdout.split())
    assert kept < 100
    assert as_it_is > 1_000  # the control: without it, all pages are requested again


def test_a_page_costs_something() -> None:
    assert 1e-8 < page_seconds() < 1e-3


def with_pages(number: float, *, cost: float | None = 1e-6) -> Measurements:
    machine = msgspec.structs.replace(TWO_CORES, page_seconds=cost)
    return on_cpu(next=10.0, forward=2.0, backward=2.0, machine=machine, pages={"loop": [0.0, number], "cached": [0.0]})


def advised(measured: Measurements, name: str) -> Advice | None:
    return next((step for step in conclude(measured).next if step.name == name), None)


def test_what_another_process_may_keep_makes_a_prediction_a_range() -> None:
    sure, unsure = advised(with_pages(0.0), "cached"), advised(with_pages(1_000.0), "cached")
    assert sure is not None
    assert unsure is not None
    assert sure.predicted is not None
    assert unsure.predicted is None
    assert (unsure.predicted_low or 0.0) < 14.8 / 5.7 < (unsure.predicted_high or 0.0)  # with all of them, and less


def test_without_their_cost_pages_say_nothing() -> None:
    unknown = advised(with_pages(1_000.0, cost=None), "cached")
    assert unknown is not None
    assert unknown.predicted is not None


def test_keeping_memory_is_advised_where_it_is_worth_it() -> None:
    step = advised(with_pages(4_000.0), "malloc")
    assert step is not None
    assert "2,000 pages per step" in step.sentence
    assert "MALLOC_TRIM_THRESHOLD_" in step.sentence
    assert (step.predicted_high or 0.0) > 14.8 / 12.8
    assert advised(with_pages(400.0), "malloc") is None


def test_pages_of_steps_are_counted() -> None:
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)

    def train_step(batch: list[torch.Tensor]) -> None:
        optimizer.zero_grad()
        net(batch[0]).sum().backward()
        optimizer.step()

    measured = measure_step(train_step, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=4), pace=0.1)
    assert set(measured.pages) == {"loop", "cached"}
    assert all(0 <= number < 1_000 for some in measured.pages.values() for number in some)
    assert measured.loop.median < 100 * MS

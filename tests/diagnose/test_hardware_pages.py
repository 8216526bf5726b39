"""Pages: that they are counted where memory comes from the system, and that no prediction is sure of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.diagnose.measured import MS
from tests.diagnose.measuring import measure_step
from torch.utils.data import DataLoader, TensorDataset

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

"""Measuring loaders: what they serve is checked, and the time of their processes is counted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.peers import indexing
from benchmarks.peers.cpu import cpu_seconds
from benchmarks.peers.measure import Limits, measure
from benchmarks.peers.served import look
from benchmarks.peers.workload import Workload

WINDOWS = Workload(name="windows", rows=500, width=4, batch_size=32, length=5)
BURN = "import time\nwhile time.process_time() < 0.3: pass"


def batches(workload: Workload, order: np.ndarray[tuple[int], np.dtype[np.int64]], folder: Path) -> list[torch.Tensor]:
    workload.write(folder)
    samples = workload.samples(folder).view(-1, *workload.shape)
    return [samples[part].clone() for part in torch.split(torch.from_numpy(order), workload.batch_size)]


def test_the_order_of_what_is_served(tmp_path: Path) -> None:
    order = np.random.default_rng(0).permutation(WINDOWS.num_samples)
    served = look(iter(batches(WINDOWS, order, tmp_path)), WINDOWS, 60)
    assert np.array_equal(np.concatenate(served.numbers), order)
    assert 0.9 < served.quality(WINDOWS)["in-batch spread"] < 1.1
    assert served.quality(WINDOWS)["samples served"] == "496 of 496, 496 different"


def test_the_time_of_a_child_is_counted_while_it_lives_and_after() -> None:
    before = cpu_seconds()
    child = subprocess.Popen([sys.executable, "-c", f"{BURN}\nprint(1, flush=True)\ninput()"], stdin=-1, stdout=-1)
    assert child.stdout is not None
    child.stdout.readline()
    alive = cpu_seconds() - before
    child.communicate(b"\n")
    assert alive >= 0.3
    assert cpu_seconds() - before >= 0.3


@pytest.mark.slow
def test_a_peer_is_measured(tmp_path: Path) -> None:
    answer = measure("indexing", WINDOWS, tmp_path / "data", Limits(rounds=1, least=0.001, most=1))
    assert [row["case"] for row in answer["rows"]] == [case.name for case in indexing.CASES if case.workload == "windows"]
    assert all(row["of ideal"]["median"] > 0 for row in answer["rows"])

"""Where columns stay: what fits, and the sentence that says why. Memory is a number here, so it can be any."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from stoker.feed import residency
from stoker.feed.residency import Residency, available_host_bytes, choose_residency

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 100 GB available and a GPU with 40 GB free."""
    monkeypatch.setattr(residency, "available_host_bytes", lambda: 100 * 10**9)
    monkeypatch.setattr(residency, "free_device_bytes", lambda device: 40 * 10**9)


def choose(
    asked: str = "auto", *, giga: float, device: torch.device, needs_host: str | None = None, on_disk: bool = True
) -> Residency:
    return choose_residency(asked, int(giga * 10**9), device, needs_host=needs_host, on_disk=on_disk)


@pytest.mark.parametrize(
    ("giga", "device", "where", "reason"),
    [
        (20, GPU, "device", "the columns (20.0 GB) fit 50% of the free GPU memory (40.0 GB)"),
        (20.1, GPU, "host", "the columns (20.1 GB) exceed 50% of the free GPU memory (40.0 GB), and the columns (20.1 GB) fit"),
        (70, GPU, "host", "fit 70% of the available memory (100.0 GB)"),
        (70.1, GPU, "stream", "exceed 70% of the available memory (100.0 GB)"),
        (1, CPU, "host", "batches are for the cpu, and the columns (1.0 GB) fit 70% of the available memory (100.0 GB)"),
        (70.1, CPU, "stream", "batches are for the cpu, and the columns (70.1 GB) exceed 70% of the available memory (100.0 GB)"),
        (0, CPU, "host", "the columns (0 B) fit"),
    ],
)
def test_the_best_that_fits_is_chosen(giga: float, device: torch.device, where: str, reason: str) -> None:
    found = choose(giga=giga, device=device)
    assert found.where == where
    assert reason in found.reason


@pytest.mark.parametrize(
    ("limit", "used", "expected"),
    [("30", "10", 20), ("90", "10", 50), ("10", "30", 0), ("max", "10", 50), (None, None, 50)],
    ids=["the group has less", "the machine has less", "the group is full", "the group has no limit", "there is no group"],
)
def test_the_limit_of_a_control_group_counts(
    limit: str | None, used: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 50}))
    monkeypatch.setattr(residency, "Path", lambda name: tmp_path)
    if limit is not None and used is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
    assert available_host_bytes() == expected

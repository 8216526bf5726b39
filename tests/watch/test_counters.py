"""Counters of the system: those of this machine, and those of files that are made up."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from stoker._clock import thread_busy_ns
from stoker.watch import counters
from stoker.watch.counters import read_counters


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system with two threads and one worker process."""
    monkeypatch.setattr(counters, "PROC", str(tmp_path))
    monkeypatch.setattr(counters, "CPUFREQ", str(tmp_path / "cpu{}"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(counters.multiprocessing, "active_children", lambda: [SimpleNamespace(pid=77)])
    for folder in ("self/task/1", "self/task/2", "77"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "stat").write_text("cpu  100 20 30 4000 5 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    (tmp_path / "self/statm").write_text("5000 1000 10 1 0 900 0\n")
    (tmp_path / "self/task/1/schedstat").write_text("111 222 3\n")
    (tmp_path / "self/task/2/schedstat").write_text("111 444 3\n")
    (tmp_path / "77/schedstat").write_text("555 666 7\n")
    (tmp_path / "cpu0").write_text("3000000\n")
    (tmp_path / "cpu1").write_text("2000000\n")
    return tmp_path


def test_counters_are_those_of_the_files_of_the_system(proc: Path) -> None:
    found = read_counters(steps=5, wait_ns=6, collector_ns=7)
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert (found.steps, found.wait_ns, found.collector_ns) == (5, 6, 7)
    assert (found.machine_cpu_ns, found.steal_ns) == ((100 + 20 + 30 + 6 + 7) * tick, 8 * tick)
    assert found.delays_ns == {"1": 222, "2": 444}
    assert (found.workers_cpu_ns, found.workers_delay_ns) == (555, 666)
    assert found.resident_bytes == 1000 * os.sysconf("SC_PAGESIZE")
    assert found.core_mhz == 2500


def test_negative_control_a_system_that_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counters, "PROC", str(tmp_path / "none"))
    monkeypatch.setattr(counters, "CPUFREQ", str(tmp_path / "none{}"))
    found = read_counters()
    assert (found.machine_cpu_ns, found.steal_ns, found.resident_bytes, found.core_mhz) == (None, None, None, None)
    assert found.delays_ns == {}
    assert found.own_cpu_ns > 0


def test_counters_of_this_machine_rise() -> None:
    first = read_counters()
    begin = thread_busy_ns()
    while thread_busy_ns() - begin < 2_000_000:
        pass
    second = read_counters()
    assert second.at_ns > first.at_ns
    assert second.own_cpu_ns - first.own_cpu_ns >= 2_000_000
    assert second.spin_ns > 0
    assert second.page_faults >= first.page_faults
    assert (first.gpu_mhz is None) == (not torch.cuda.is_initialized())


def test_the_gpu_of_torch_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def open_device(uuid: str) -> SimpleNamespace:
        asked.append(uuid)
        return SimpleNamespace(clock_mhz=lambda: 1980, throttle=lambda: "temperature", num_programs=lambda: 2)

    monkeypatch.setattr(counters, "open_device", open_device)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda: {"allocated_bytes.all.current": 5, "num_alloc_retries": 6})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="aa-bb"))
    found = read_counters()
    assert asked == ["aa-bb"]
    assert (found.gpu_bytes, found.gpu_retries) == (5, 6)
    assert (found.gpu_mhz, found.gpu_throttle, found.gpu_programs) == (1980, "temperature", 2)

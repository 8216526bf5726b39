"""What the system knows about this process and its machine: counters, read now and then.

A read costs a tenth of a millisecond, so a watch reads every 4,080 steps and around a slowdown. Everything is optional: a value that the
system does not report is None.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stoker._clock import busy_ns, now_ns, read_proc, schedstat, thread_busy_ns, waited_ns

PROC = "/proc"
CPUFREQ = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"
MAX_CORES = 4  # whose clock is read
MAX_THREADS = 16  # whose waits are read
SPIN_ROUNDS = 3
SPIN = range(500)


@dataclass(frozen=True, kw_only=True)
class Counters:
    """Values at one moment. Times and counts are since the start of the process; `steps` and `wait_ns` are those of the watch."""

    steps: int
    wait_ns: int
    at_ns: int
    own_cpu_ns: int
    workers_cpu_ns: int = 0
    workers_delay_ns: int = 0
    delays_ns: Mapping[str, int] = field(default_factory=dict)  # wait for a core, by thread
    machine_cpu_ns: int | None = None  # of all programs
    steal_ns: int | None = None  # taken by other virtual machines
    resident_bytes: int | None = None
    page_faults: int = 0
    disk_faults: int = 0
    collector_ns: int = 0  # garbage collection
    spin_ns: int = 0  # CPU time of a fixed loop
    core_mhz: float | None = None
    gpu_mhz: float | None = None
    gpu_throttle: str | None = None  # why the GPU runs at a lower clock
    gpu_programs: int | None = None
    gpu_bytes: int | None = None  # allocated by torch
    gpu_retries: int | None = None  # allocations that had to empty the cache first


def _resident_bytes() -> int | None:
    """Memory of this process; None where the system does not say."""
    pages = read_proc(f"{PROC}/self/statm").split()
    return int(pages[1]) * resource.getpagesize() if len(pages) > 1 else None


def read_counters(*, steps: int = 0, wait_ns: int = 0, collector_ns: int = 0) -> Counters:
    """The counters of now."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    machine, steal = _machine_ns()
    workers = [schedstat(f"{PROC}/{worker.pid}") for worker in multiprocessing.active_children()]
    return Counters(
        steps=steps,
        wait_ns=wait_ns,
        at_ns=now_ns(),
        own_cpu_ns=busy_ns(),
        workers_cpu_ns=sum(worker[0] for worker in workers if worker is not None),
        workers_delay_ns=sum(worker[1] for worker in workers if worker is not None),
        delays_ns=waited_ns(f"{PROC}/self/task", MAX_THREADS),
        machine_cpu_ns=machine,
        steal_ns=steal,
        resident_bytes=_resident_bytes(),
        page_faults=usage.ru_minflt,
        disk_faults=usage.ru_majflt,
        collector_ns=collector_ns,
        spin_ns=spin_ns(),
        core_mhz=_core_mhz(),
        **_gpu(),
    )


def spin_ns() -> int:
    """CPU time of a fixed loop, the best of some rounds: it grows when the core's clock falls."""
    best = 1 << 62
    for _ in range(SPIN_ROUNDS):
        begin = thread_busy_ns()
        sum(SPIN)
        best = min(best, thread_busy_ns() - begin)
    return best


def _machine_ns() -> tuple[int | None, int | None]:
    """CPU time of all programs of the machine, and time taken by other machines of its host."""
    words = read_proc(f"{PROC}/stat").partition(b"\n")[0].split()
    if len(words) < 9:
        return None, None
    user, nice, system, _, _, irq, soft, steal = (int(word) for word in words[1:9])
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return (user + nice + system + irq + soft) * tick, steal * tick


def _core_mhz() -> float | None:
    """The mean clock of the cores that this process may use; None where the system hides it, as in virtual machines."""
    cores = sorted(os.sched_getaffinity(0))[:MAX_CORES] if hasattr(os, "sched_getaffinity") else []
    clocks = [int(text) / 1000 for core in cores if (text := read_proc(CPUFREQ.format(core)))]
    return sum(clocks) / len(clocks) if clocks else None


def _gpu() -> dict[str, Any]:
    """The GPU that this process uses, if it uses one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return {}
    stats = torch.cuda.memory_stats()
    values: dict[str, Any] = {
        "gpu_bytes": stats.get("allocated_bytes.all.current"),
        "gpu_retries": stats.get("num_alloc_retries"),
    }
    device = open_device(str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid))
    if device is not None:
        values |= {"gpu_mhz": device.clock_mhz(), "gpu_throttle": device.throttle(), "gpu_programs": device.num_programs()}
    return values


# Clock and programs of an NVIDIA GPU, asked of the driver's own library (libnvidia-ml) through ctypes. The library is part of every
# driver, so no package is needed. Where it is missing, or refuses, the answer is None.


SM_CLOCK = 1
MAX_PROGRAMS = 64
THROTTLE = {
    0x04: "power limit",
    0x08: "hardware slowdown",
    0x10: "GPUs in step",
    0x20: "temperature",
    0x40: "temperature (hardware)",
    0x80: "power brake",
}
"""Reasons that are worth a word. An idle GPU and a clock that a program has set are none."""


class _Program(ctypes.Structure):
    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used_bytes", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class Device:
    """One GPU."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    def _number(self, name: str, *arguments: Any, kind: Any = ctypes.c_uint) -> int | None:
        function, value = getattr(self._library, name, None), kind()
        if function is None or function(self._handle, *arguments, ctypes.byref(value)):
            return None
        return int(value.value)

    def clock_mhz(self) -> float | None:
        """The clock of the multiprocessors."""
        return self._number("nvmlDeviceGetClockInfo", SM_CLOCK)

    def throttle(self) -> str | None:
        """Why the clock is lower than it could be; None if it is not."""
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong) or 0
        return ", ".join(word for bit, word in THROTTLE.items() if reasons & bit) or None

    def num_programs(self) -> int | None:
        """The number of programs that compute on the GPU, this one included."""
        function = getattr(self._library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        count, programs = ctypes.c_uint(MAX_PROGRAMS), (_Program * MAX_PROGRAMS)()
        if function is None or function(self._handle, ctypes.byref(count), programs):
            return None
        return count.value


@functools.cache
def open_device(uuid: str) -> Device | None:
    """The GPU with this UUID, as torch names it; None where the driver's library does not answer."""
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    handle = ctypes.c_void_p()
    name = (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}").encode()
    if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle)):
        return None
    return Device(library, handle)

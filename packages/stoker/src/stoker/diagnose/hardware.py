"""Rates of this machine (`measure_machine`), measured in about a second, to compare with what a training run reaches.

Datasheets are wrong by a quarter and more, so every peak is measured, once per process. The state of the program does not change: no
random number is drawn, no function is called that hooks.py has hooked, and flags and threads are restored. `pages_so_far`,
`page_seconds` and `keep_memory` are about memory pages from the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import resource
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn.functional import layer_norm, linear

from stoker._clock import now_ns
from stoker.diagnose.measurements import Device, Machine
from stoker.diagnose.ops import Counting
from stoker.train.numerics import kept_matmul_flags, set_matmul_flags

ISSUED = 200  # consecutive operations: far fewer than the launch queue of a GPU holds
CHAIN = 20  # layers of the small network that is trained
ROUNDS, ROUNDS_SECONDS = 3, 2.0  # no further round begins after that time; one takes a third of a second
CPU_TYPES = ("fp32", "bf16")
CUDA_TYPES = ("fp32", "tf32", "bf16", "fp16")


@functools.cache
def measure_machine(device: Device = "cpu") -> Machine:
    """Rates of the machine, measured at the first call in a process."""
    cores, threads = len(os.sched_getaffinity(0)), torch.get_num_threads()
    with _undisturbed(min(threads, cores)):
        if device == "cuda":
            return Machine(
                cores=cores,
                threads=threads,
                gpu=torch.cuda.get_device_name(),
                matmul_flops={kind: matmul_flops(kind, "cuda") for kind in CUDA_TYPES},
                dispatch_seconds=dispatch_seconds(),
                launch_seconds=_launch_seconds(),
            )
        # The best of several rounds: another program may take the machine at one moment and not at the next.
        rounds, begin = list[tuple[dict[str, float], float]](), now_ns()
        while (
            len(rounds) < ROUNDS and now_ns() - begin < ROUNDS_SECONDS * 1e9
        ):  # a thread that holds the interpreter lock makes them long
            flops = {kind: matmul_flops(kind, "cpu") for kind in CPU_TYPES}
            rounds.append((flops, dispatch_seconds()))
        return Machine(
            cores=cores,
            threads=threads,
            matmul_flops={kind: max(flops[kind] for flops, _ in rounds) for kind in CPU_TYPES},
            dispatch_seconds=min(seconds for _, seconds in rounds),
            page_seconds=page_seconds(),
        )


@contextlib.contextmanager
def _undisturbed(threads: int) -> Iterator[None]:
    """At most one thread per core, no autocast, gradients enabled; restored afterwards."""
    before = torch.get_num_threads()
    with contextlib.ExitStack() as stack:
        for kind in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if threads != before:
            torch.set_num_threads(threads)
            stack.callback(torch.set_num_threads, before)
        yield


def _best_seconds(run: Callable[[], object], *, at_most: float, device: Device = "cpu") -> float:
    """The fastest of several runs, each until the device is idle. The first one warms up and does not count."""
    wait: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else lambda: None
    run()
    wait()
    best, begin = float("inf"), now_ns()
    while now_ns() - begin < at_most * 1e9 or best == float("inf"):
        start = now_ns()
        run()
        wait()
        best = min(best, (now_ns() - start) / 1e9)
    return best


def matmul_flops(kind: str, device: Device) -> float:
    """FLOP per second of one large matmul. Its size grows until it takes some milliseconds, so slow types cost little time."""
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(kind, torch.float32)
    rate, size, largest = 0.0, *((2048, 8192) if device == "cuda" else (256, 1024))
    with contextlib.ExitStack() as stack, torch.no_grad():
        if device == "cuda":
            stack.enter_context(kept_matmul_flags())
            set_matmul_flags("tf32" if kind == "tf32" else "fp32")
        while size <= largest:
            left = torch.full((size, size), 0.5, dtype=dtype, device=device)
            out = torch.empty_like(left)
            seconds = _best_seconds(lambda left=left, out=out: torch.mm(left, left, out=out), at_most=0.02, device=device)  # type: ignore[misc]
            rate = max(rate, 2 * size**3 / seconds)
            if seconds > 0.02:
                break
            size *= 2
    return rate


def has_bf16_instructions() -> bool:
    """Whether the processor multiplies in bfloat16 by itself (Linux, x86): then it may be faster in it."""
    with contextlib.suppress(OSError):
        return not {"avx512_bf16", "amx_bf16"}.isdisjoint(
            Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").split()
        )
    return False


def dispatch_seconds() -> float:
    """The host's cost of one small operation: a small network forward and backward, divided by its number of operations."""
    # It includes torch's Python, autograd and the operation itself, because a step pays them all.
    weight = torch.full((8, 8), 0.1, device="cpu", dtype=torch.float32, requires_grad=True)
    bias = torch.full((8,), 0.1, device="cpu", dtype=torch.float32, requires_grad=True)
    begin = torch.full((8, 8), 0.5, device="cpu", dtype=torch.float32)

    def run() -> None:
        value = begin
        for _ in range(CHAIN):
            value = layer_norm(value + torch.relu(linear(value, weight, bias)), (8,), bias, bias)
        torch.autograd.grad(value.sum(), (weight, bias))

    with Counting() as counted:
        run()
    return _best_seconds(run, at_most=0.06) / float(counted.ops)


def _launch_seconds() -> float:
    """Seconds to issue one kernel while the device is busy."""
    value = torch.full((8,), 0.5, device="cuda")

    def run() -> None:
        for _ in range(ISSUED):
            value.add_(0.0)

    run()
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        start = now_ns()
        run()
        best = min(best, (now_ns() - start) / 1e9 / ISSUED)
    torch.cuda.synchronize()
    return best


KNOWN_KERNELS = 60


def gpu_taken() -> float:
    """Return the share of the time that other programs have the GPU: what a known kernel takes longer than the fastest of its kind."""
    # A GPU changes between programs every few milliseconds, so some of these kernels are interrupted and others are not.
    value = torch.full((2048, 2048), 0.5, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(value)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(KNOWN_KERNELS + 1)]  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for event in events:
            for _ in range(8):
                torch.mm(value, value, out=out)
            event.record()
    torch.cuda.synchronize()
    spent = sorted(before.elapsed_time(after) for before, after in pairwise(events))
    usual, mean = spent[len(spent) // 10], sum(spent) / len(spent)
    return max(0.0, 1 - usual / mean) if mean > 0 else 0.0


# ---- memory pages from the system ----
#
# glibc returns large blocks to the system as soon as they are free, and a training run frees the same blocks at every step. Each page
# that is requested again costs an interrupt and 4 KiB of zeros: with 1,400 of them, a step of 5.4 ms took 6 ms in one process, and
# 11 ms in the next.

BYTES = 8 << 20
TRIM_THRESHOLD, MMAP_MAX = -1, -4  # settings of glibc's malloc.h
LARGEST = (1 << 31) - 1


def pages_so_far() -> int:
    """Pages that this process got from the system without reading a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_seconds() -> float:
    """Seconds to get a page and write to it: what the first write to each page takes longer than the second."""
    first = second = float("inf")  # the best of a few rounds each: another program may interrupt any of them
    for _ in range(ROUNDS):
        with mmap.mmap(-1, BYTES) as memory:
            before = pages_so_far()
            spent = _write_pages(memory)
            got = pages_so_far() - before
            if got:
                first, second = min(first, spent / got), min(second, _write_pages(memory) / got)
    return max(0.0, first - second) if first < float("inf") else 0.0


def _write_pages(memory: mmap.mmap) -> float:
    """Seconds to write a byte to each page."""
    begin = now_ns()
    for at in range(0, BYTES, mmap.PAGESIZE):
        memory[at] = 1
    return (now_ns() - begin) / 1e9


def keep_memory() -> bool:
    """Make this process keep the memory it frees; False if its allocator has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(TRIM_THRESHOLD, LARGEST)) and bool(mallopt(MMAP_MAX, 0))

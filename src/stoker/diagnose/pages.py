"""Pages of memory that a process gets from the system: how many, what one costs, and the setting that keeps them.

glibc gives large blocks back to the system as soon as they are free, and a training frees the same blocks at every step. Each page
that is asked for anew is an interrupt and 4 KiB of zeros: with 1,400 of them, a step of 5.4 ms took 6 ms in one process, and 11 ms
in the next.
"""

from __future__ import annotations

import ctypes
import mmap
import resource

from stoker.clock import now_ns

BYTES = 8 << 20
ROUNDS = 3
TRIM_THRESHOLD, MMAP_MAX = -1, -4
"""Numbers of settings, as glibc's malloc.h has them."""
LARGEST = (1 << 31) - 1
ENVIRONMENT = "MALLOC_TRIM_THRESHOLD_=4294967296 MALLOC_MMAP_MAX_=0"
"""The same from outside of a process."""


def pages_so_far() -> int:
    """That this process got from the system without reading a disk."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_seconds() -> float:
    """What it takes to get a page and to write to it; the best of a few rounds."""
    size, best = mmap.PAGESIZE, float("inf")
    for _ in range(ROUNDS):
        with mmap.mmap(-1, BYTES) as memory:
            before, begin = pages_so_far(), now_ns()
            for at in range(0, BYTES, size):
                memory[at] = 1
            spent, got = now_ns() - begin, pages_so_far() - before
            begin = now_ns()
            for at in range(0, BYTES, size):  # the same when they are there: what the loop itself costs
                memory[at] = 1
            spent -= now_ns() - begin
        if got:
            best = min(best, max(0, spent) / 1e9 / got)
    return best if best < float("inf") else 0.0


def keep_memory() -> bool:
    """Have this process keep what it frees, for good; False where its allocator has no such setting."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(TRIM_THRESHOLD, LARGEST)) and bool(mallopt(MMAP_MAX, 0))

"""Threads: how many of them a step on the CPU is fastest with, by measuring.

Layers of these models are small. On a busy machine threads of torch wait for each other at every one of them, and two can be
many times slower than one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from stoker.clock import now_ns

ROUNDS = 3
LEAST_GAIN = 1.5
"""More threads must be so many times faster than one: they pay for it whenever another program runs."""


def fastest_threads(step: Callable[[], object]) -> int:
    """One, or all that torch would use; what is faster in the best of some rounds."""
    usual = torch.get_num_threads()
    if usual == 1:
        return 1
    best = {1: float("inf"), usual: float("inf")}
    step()  # what is only done once
    for _ in range(ROUNDS):
        for count in best:
            with using(count):
                start = now_ns()
                step()
                best[count] = min(best[count], now_ns() - start)
    return usual if best[usual] * LEAST_GAIN < best[1] else 1


@contextlib.contextmanager
def using(count: int) -> Iterator[None]:
    """So many threads, and then those of before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

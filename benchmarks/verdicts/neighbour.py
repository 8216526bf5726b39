"""Noisy neighbours: processes that burn the processor in bursts, for as long as a program is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BURN = """
import random, sys, time
random.seed(int(sys.argv[1]))
while True:
    end = time.perf_counter() + random.uniform(0.05, 0.8)
    while time.perf_counter() < end:
        sum(range(2000))
    time.sleep(random.uniform(0.05, 0.8))
"""


@contextmanager
def noisy_neighbours(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """`count` processes that are busy half of the time, each by its own clock."""
    # Each in a session of its own: Linux shares out cores by sessions, and these are to be other programs.
    processes = [subprocess.Popen([sys.executable, "-c", BURN, str(number)], start_new_session=True) for number in range(count)]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

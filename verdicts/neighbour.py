"""Noisy neighbours: processes that burn the processor in bursts, for as long as a program is measured.

Each is pinned to one core, in turn: a scheduler may otherwise leave them all on one core and the program alone on the other, which then
is not disturbed. On a machine with 16 cores five programs in lanes of two waited for a core less than 0.02 % of their time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

BURN = """
import os, random, sys, time
random.seed(int(sys.argv[1]))
os.sched_setaffinity(0, {int(sys.argv[2])})
while True:
    end = time.perf_counter() + random.uniform(0.05, 0.8)
    while time.perf_counter() < end:
        sum(range(2000))
    time.sleep(random.uniform(0.05, 0.8))
"""


@contextmanager
def noisy_neighbours(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """`count` processes that are busy half of the time, each by its own clock, on the cores of this thread in turn."""
    cores = sorted(os.sched_getaffinity(0))
    # Each in a session of its own: Linux shares out cores by sessions, and these are to be other programs.
    processes = [
        subprocess.Popen([sys.executable, "-c", BURN, str(number), str(cores[number % len(cores)])], start_new_session=True)
        for number in range(count)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()

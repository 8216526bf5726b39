"""A CPU hog: processes that keep every core busy, as other programs of a shared machine do."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

SPIN = """
import os, time
end = time.monotonic() + 600
while time.monotonic() < end and os.getppid() == {parent}:
    sum(range(20_000))
"""


@contextlib.contextmanager
def hog() -> Iterator[None]:
    """Spin on each core for as long as the block lasts; a test that is killed leaves no spinning process behind."""
    command = [sys.executable, "-S", "-c", SPIN.format(parent=os.getpid())]
    spinning = [subprocess.Popen(command) for _ in os.sched_getaffinity(0)]
    try:
        yield
    finally:
        for process in spinning:
            process.kill()
        for process in spinning:
            process.wait()

"""Nothing that a judged run starts outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = """
import os, sys, time
from stoker.compare.keeper import keep
if {kept}:
    keep()
if os.fork() == 0:  # leaves its session and its parents
    os.setsid()
    child = os.fork()
    if child == 0:
        os.close(1)
        time.sleep(60)
    else:
        print(child, flush=True)
    os._exit(0)
os.wait()
{end}
"""


def run(end: str, *, kept: bool = True) -> tuple[int, int]:
    """The exit code of a run, and the process that it left."""
    done = subprocess.run([sys.executable, "-c", RUN.format(kept=kept, end=end)], stdout=subprocess.PIPE, text=True, check=False)
    return done.returncode, int(done.stdout)


def is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.promise("P35")
@pytest.mark.parametrize(("end", "code"), [("os._exit(3)", 3), ("", 0), ("os.kill(os.getpid(), 9)", -signal.SIGKILL)])
def test_a_process_that_left_its_session_ends_with_the_run(end: str, code: int) -> None:
    status, left = run(end)
    assert (status, is_running(left)) == (code, False)


def test_all_of_it_ends_when_the_keeper_is_asked_to() -> None:
    keeper = subprocess.Popen(
        [sys.executable, "-c", RUN.format(kept=True, end="time.sleep(60)")], stdout=subprocess.PIPE, text=True
    )
    assert keeper.stdout is not None
    left = int(keeper.stdout.readline())
    keeper.terminate()
    keeper.wait()
    keeper.stdout.close()
    assert not is_running(left)


@pytest.mark.promise("P35", control=True)
def test_negative_control_without_a_keeper_it_continues() -> None:
    _, left = run("", kept=False)
    time.sleep(0.1)
    assert is_running(left)
    os.kill(left, signal.SIGKILL)

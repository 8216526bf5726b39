"""The watch in true processes on a true machine: slowdowns that are made, and a soak without any.

Loaders, steps and ranks that become slow do so by sleeping, which a busy machine delays by little, and by a factor that stands out at a
load of 25 per core. What computes needs a calm machine: elsewhere the watch would find the other programs, rightly. So it is measured what
these use meanwhile, and a disturbed run is repeated, or skipped in the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

pytestmark = pytest.mark.slow
STEPS = 1300
AT = 1100
OTHERS = 0.05  # cores that other programs use in a calm run, at most
T = TypeVar("T")

PROGRAM = """
import gc, os, subprocess, sys, time
import stoker

state = {"n": %(n)d, "sleep": %(sleep)s, "wait": 0.003, "kept": [], "each": 0}
begun = []
if state["n"]:
    core = min(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})

def batches():
    for step in range(%(steps)d):
        if step == %(at)d:
            change()
        time.sleep(state["wait"])
        yield step

def neighbour():
    begun.append(subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\\nwhile True: pass"]))
    time.sleep(0.5)

def change():
    %(change)s

watched = stoker.watch(batches(), report=print)
for batch in watched:
    sum(range(state["n"]))
    time.sleep(state["sleep"])
    for _ in range(state["each"]):
        gc.collect()
for process in begun:
    process.kill()
    process.wait()  # so that its time is known to be that of this program
for slowdown in watched.slowdowns:
    print("FOUND", slowdown.cause, slowdown.step, flush=True)
"""


def run(tmp_path: Path, change: str, *, computes: bool, steps: int = STEPS) -> list[tuple[str, int]]:
    script = tmp_path / "script.py"
    work = {"n": 60_000, "sleep": 0} if computes else {"n": 0, "sleep": 0.005}
    script.write_text(textwrap.dedent(PROGRAM) % {"steps": steps, "at": AT, "change": change, **work})
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=True)
    print(done.stdout)
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("FOUND")]
    return [(cause, int(step)) for _, cause, step in words]


def beside_others(work: Callable[[], T]) -> tuple[T, float]:
    """The result of a function, and the cores that other programs used meanwhile, on average."""

    def others() -> float:
        busy = [int(one) for one in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        user, system, of_children, system_of_children, _ = os.times()
        own = user + system + of_children + system_of_children
        return (sum(busy[:3]) + sum(busy[5:8])) / os.sysconf("SC_CLK_TCK") - own  # user, nice, system; irq, softirq, steal

    before, begin = others(), time.perf_counter()
    found = work()
    return found, (others() - before) / (time.perf_counter() - begin)


def run_calmly(tmp_path: Path, change: str, *, steps: int = STEPS) -> list[tuple[str, int]]:
    """`run` of a program that computes, at a time when other programs do not."""
    for _ in range(3):
        if beside_others(lambda: time.sleep(1))[1] > OTHERS:
            continue
        found, cores = beside_others(lambda: run(tmp_path, change, computes=True, steps=steps))
        if cores <= OTHERS:
            return found
        print(f"Other programs used {cores:.2f} cores.")
    pytest.skip("other programs are what the watch would find")


@pytest.mark.promise("P22")
@pytest.mark.parametrize(("cause", "change"), [("loader", 'state["wait"] = 0.03'), ("step", 'state["sleep"] = 0.03')])
def test_a_slow_loader_and_a_slow_step_are_named_also_on_a_busy_machine(tmp_path: Path, cause: str, change: str) -> None:
    (found,) = run(tmp_path, change, computes=False)
    assert found[0] == cause
    assert AT < found[1] <= AT + 100


@pytest.mark.promise("P22")
@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("step", 'state["n"] *= 2'),
        ("neighbour", "neighbour()"),
        ("memory", 'state["kept"] = [[] for _ in range(200_000)]; state["each"] = 1'),
    ],
)
def test_a_slowdown_that_is_made_is_named(tmp_path: Path, cause: str, change: str) -> None:
    (found,) = run_calmly(tmp_path, change)
    assert found[0] == cause
    assert AT < found[1] <= AT + 100


def test_negative_control_sleeping_steps_without_a_change_have_no_alarm(tmp_path: Path) -> None:
    assert run(tmp_path, "pass", computes=False, steps=4000) == []

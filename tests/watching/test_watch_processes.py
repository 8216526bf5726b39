"""The watch in true processes on a true machine: slowdowns that are made, and a soak without any.

Loaders, steps and ranks that become slow do so by sleeping, which a busy machine delays by little, and by a factor that stands out at a
load of 25 per core. What computes needs a calm machine: elsewhere the watch would find the other programs, rightly.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
STEPS = 1300
AT = 1100
calm = pytest.mark.skipif(os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1), reason="other programs are what the watch would find")

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


@pytest.mark.parametrize(("cause", "change"), [("loader", 'state["wait"] = 0.03'), ("step", 'state["sleep"] = 0.03')])
def test_a_slow_loader_and_a_slow_step_are_named_also_on_a_busy_machine(tmp_path: Path, cause: str, change: str) -> None:
    (found,) = run(tmp_path, change, computes=False)
    assert found[0] == cause
    assert AT < found[1] <= AT + 100


@calm
@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("step", 'state["n"] *= 2'),
        ("neighbour", "neighbour()"),
        ("memory", 'state["kept"] = [[] for _ in range(200_000)]; state["each"] = 1'),
    ],
)
def test_a_slowdown_that_is_made_is_named(tmp_path: Path, cause: str, change: str) -> None:
    (found,) = run(tmp_path, change, computes=True)
    assert found[0] == cause
    assert AT < found[1] <= AT + 100


# Longer steps, as the all-reduce of two ranks is late wherever one of them waits for a core.
RANK_STEPS, RANK_AT = 1000, 850
RANKS = """
import os, sys, time
import torch, torch.distributed as dist
import stoker

dist.init_process_group("gloo")
rank = dist.get_rank()
wait = 0.01

def batches():
    global wait
    for step in range(%(steps)d):
        if step == %(at)d and rank == 1:
            wait = 0.1
        time.sleep(wait)
        yield step

gradient = torch.ones(1000)
watched = stoker.watch(batches())
for batch in watched:
    time.sleep(0.01)
    dist.all_reduce(gradient)
for slowdown in watched.slowdowns:
    print("FOUND", slowdown.cause, slowdown.step, slowdown.evidence, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_both_ranks_name_the_slow_one(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(RANKS) % {"steps": RANK_STEPS, "at": RANK_AT})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=common | {"RANK": str(rank)})
        for rank in range(2)
    ]
    for out in [process.communicate(timeout=300)[0] for process in started]:
        print(out)
        (line,) = (line for line in out.splitlines() if line.startswith("FOUND"))
        assert line.startswith("FOUND rank")
        assert "rank 1 is slow (loader)" in line
        assert RANK_AT < int(line.split()[2]) <= RANK_AT + 100


def test_negative_control_sleeping_steps_without_a_change_have_no_alarm(tmp_path: Path) -> None:
    assert run(tmp_path, "pass", computes=False, steps=4000) == []


@calm
def test_negative_control_a_soak_without_one_has_no_alarm(tmp_path: Path) -> None:
    assert run(tmp_path, "pass", computes=True, steps=30_000) == []

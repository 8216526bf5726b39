"""The watch in true processes on a true machine: slowdowns that are made, and a soak without any. A busy machine cannot run these."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
STEPS = 2200
AT = 1800

PROGRAM = """
import gc, os, subprocess, sys, time
import stoker

core = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {core})
state = {"n": 20_000, "wait": 0.0005, "kept": [], "each": 0}
begun = []

def batches():
    for step in range(%(steps)d):
        if step == %(at)d:
            change()
        end = time.perf_counter() + state["wait"]
        while time.perf_counter() < end:
            pass
        yield step

def neighbour():
    begun.append(subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {{{core}}})\\nwhile True: pass"]))
    time.sleep(0.5)

def change():
    %(change)s

watched = stoker.watch(batches(), report=print)
for batch in watched:
    sum(range(state["n"]))
    for _ in range(state["each"]):
        gc.collect()
for process in begun:
    process.kill()
for slowdown in watched.slowdowns:
    print("FOUND", slowdown.cause, slowdown.step, flush=True)
"""


def run(tmp_path: Path, change: str, *, steps: int = STEPS) -> list[tuple[str, int]]:
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM) % {"steps": steps, "at": AT, "change": change})
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=True)
    print(done.stdout)
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("FOUND")]
    return [(cause, int(step)) for _, cause, step in words]


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("loader", 'state["wait"] *= 2'),
        ("step", 'state["n"] *= 2'),
        ("neighbour", "neighbour()"),
        ("memory", 'state["kept"] = [[] for _ in range(200_000)]; state["each"] = 1'),
    ],
)
def test_a_slowdown_that_is_made_is_named(tmp_path: Path, cause: str, change: str) -> None:
    (found,) = run(tmp_path, change)
    assert found[0] == cause
    assert AT < found[1] <= AT + 100


RANKS = """
import os, sys, time
import torch, torch.distributed as dist
import stoker

dist.init_process_group("gloo")
rank = dist.get_rank()
wait = 0.0005

def batches():
    global wait
    for step in range(%(steps)d):
        if step == %(at)d and rank == 1:
            wait = 0.001
        end = time.perf_counter() + wait
        while time.perf_counter() < end:
            pass
        yield step

gradient = torch.ones(1000)
watched = stoker.watch(batches())
for batch in watched:
    sum(range(20_000))
    dist.all_reduce(gradient)
for slowdown in watched.slowdowns:
    print("FOUND", slowdown.cause, slowdown.step, slowdown.evidence, flush=True)
dist.barrier()
dist.destroy_process_group()
"""


def test_both_ranks_name_the_slow_one(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(textwrap.dedent(RANKS) % {"steps": STEPS, "at": AT})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    common = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env=common | {"RANK": str(rank)})
        for rank in range(2)
    ]
    for process in started:
        out, _ = process.communicate(timeout=300)
        print(out)
        (line,) = (line for line in out.splitlines() if line.startswith("FOUND"))
        assert line.startswith("FOUND rank")
        assert "rank 1 is slow (loader)" in line
        assert AT < int(line.split()[2]) <= AT + 100


@pytest.mark.skipif(os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1), reason="other programs are what the watch would find")
def test_negative_control_a_soak_without_one_has_no_alarm(tmp_path: Path) -> None:
    assert run(tmp_path, "pass", steps=100_000) == []

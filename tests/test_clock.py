"""How long threads wait for a core that others have, as the system tells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from stoker import _clock
from stoker._clock import RunQueueDelay, cores_of_children


def threads(folder: Path, **waited: int) -> None:
    for name, nanoseconds in waited.items():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "schedstat").write_text(f"123456 {nanoseconds} 7\n")


def test_the_thread_that_waited_most_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "TASKS", tmp_path)
    monkeypatch.setattr(_clock, "PROC", tmp_path / "nowhere")
    threads(tmp_path, t1=100, t2=5000)
    waiting = RunQueueDelay()
    threads(tmp_path, t1=400, t2=5100, t3=250)
    (tmp_path / "t4").mkdir()  # a thread that ends while it is looked at
    assert waiting.end()[0] == 300


@pytest.mark.parametrize(("others", "waited"), [(0.0, 0.0), (0.25, 0.25), (5.0, 1.0)])
def test_a_wait_for_own_threads_does_not_count(
    others: float, waited: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread waits for one second, while other programs have this core for some seconds, and another core for nine."""

    def busy(own: float, other: float) -> None:
        monkeypatch.setattr(_clock, "busy_ns", lambda: int(own * 1e9))
        ticks = [round(seconds * os.sysconf("SC_CLK_TCK")) for seconds in (own, 0, other, 77, 7, 0, 0, 8)]
        mine = " ".join(map(str, ticks))
        (tmp_path / "stat").write_text(f"cpu {mine}\ncpu{core} {mine}\ncpu{core}9 {ticks[0]} 0 {9 * ticks[2]} 0 0 0 0 0\nintr 9\n")

    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {core})
    monkeypatch.setattr(_clock, "TASKS", tmp_path)
    monkeypatch.setattr(_clock, "PROC", tmp_path)
    threads(tmp_path, t1=0)
    busy(1.0, 2.0)
    waiting = RunQueueDelay()
    threads(tmp_path, t1=10**9)
    busy(3.0, 2.0 + others)
    assert waiting.end()[0] == pytest.approx(waited * 1e9)


def test_cpu_time_of_own_processes_is_not_taken_by_others() -> None:
    """A child and its child compute, and end at different times; another program that started before does not exist here."""
    code = "import subprocess, sys, time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    grandchild = f"subprocess.run([sys.executable, '-c', {code!r}])"
    before = _clock._descendants_ns()
    child = subprocess.Popen(
        [sys.executable, "-c", f"{code}{grandchild}\nprint(flush=True)\nsys.stdin.read()"], stdin=PIPE, stdout=PIPE
    )
    assert child.stdout is not None
    child.stdout.readline()
    running = _clock._descendants_ns() - before
    child.communicate()
    ended = _clock._descendants_ns() - before
    assert 0.5e9 <= running <= ended + 0.03e9  # two times 0.3 s, in ticks of 10 ms
    assert ended >= 0.6e9


def test_only_child_processes_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_clock, "PROC", tmp_path)
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "uptime").write_text("100.0 50.0\n")
    for number, (parent, user, system) in enumerate([(os.getpid(), 2, 1), (os.getpid(), 1, 0), (1, 9, 9)]):
        fields = ["S", parent, *[0] * 9, user * ticks, system * ticks, *[0] * 6, 90 * ticks]  # began 10 s ago
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "stat").write_text(f"{number} (a name) b) {' '.join(map(str, fields))} 0\n")
    assert cores_of_children() == pytest.approx(0.4)
    monkeypatch.setattr(_clock, "PROC", tmp_path / "nowhere")
    assert cores_of_children() == 0.0


def test_a_clock_stands_still_while_its_thread_waits_for_a_core() -> None:
    """Two threads of a process share one core; each computes for half of the time."""
    code = (
        "import os, subprocess, sys\n"
        "from stoker._clock import TimeWithCore, now_ns\n"
        "os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])\n"
        "other = subprocess.Popen([sys.executable, '-c', 'while True: pass'])\n"
        "clock = TimeWithCore()\n"
        "begin, with_core = now_ns(), clock()\n"
        "while now_ns() - begin < 8e8: pass\n"
        "print((clock() - with_core) / (now_ns() - begin))\n"
        "other.kill()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert float(done.stdout) < 0.9

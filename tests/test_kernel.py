"""Compiling is announced once, on a terminal, when it really happens; a kernel from the cache says nothing."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stoker
import stoker.kernel

LINE = "stoker: compiling kernels for this machine"

TWO_KERNELS = """
from threading import Thread
from stoker.kernel import kernel

@kernel
def double(x):
    return 2 * x

@kernel
def triple(x):
    return 3 * x

threads = [Thread(target=double, args=(1,)), Thread(target=triple, args=(1,))]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(double(2), triple(2), double(0.5))
"""

COMMAND = """
from stoker.cli.main import main
main()
"""

FOREIGN = """
import stoker.kernel
from numba import njit
print(njit(lambda x: 2 * x)(1))
"""

Run = Callable[..., tuple[str, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a script with a cache of its own; returns what it printed, and what it wrote to standard error."""

    def run_script(text: str, *words: str, terminal: bool = True, **environment: str) -> tuple[str, str]:
        script = tmp_path / "script.py"
        script.write_text(text)  # in a file, as numba keeps no kernel without one
        os.utime(script, (1_000_000_000, 1_000_000_000))  # which makes the cache valid for the next run
        ours, theirs = pty.openpty()
        inherited = {name: value for name, value in os.environ.items() if name != stoker.kernel.ANNOUNCE}
        child = subprocess.Popen(
            [sys.executable, str(script), *words],
            cwd=tmp_path,
            env={**inherited, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), **environment},
            stdout=subprocess.PIPE,
            stderr=theirs if terminal else subprocess.PIPE,
            text=True,
        )
        os.close(theirs)
        seen = _read_all(ours)
        os.close(ours)
        printed, written = child.communicate(timeout=120)
        assert child.returncode == 0, written or seen
        return printed, seen if terminal else written

    return run_script


def _read_all(terminal: int) -> str:
    parts = []
    try:
        while part := os.read(terminal, 4096):
            parts.append(part)
    except OSError:  # a terminal that nobody writes to any more is an error on Linux
        pass
    return b"".join(parts).decode()


def test_compiling_is_announced_once_on_a_terminal_and_not_again_from_the_cache(run: Run) -> None:
    printed, written = run(TWO_KERNELS)
    assert printed == "4 6 1.0\n"
    assert written.count(LINE) == 1
    assert written.startswith(LINE)
    assert written.count("\n") == 1
    assert run(TWO_KERNELS) == (printed, "")


def test_negative_control_without_its_cache_a_kernel_is_announced_again(run: Run, tmp_path: Path) -> None:
    assert LINE in run(TWO_KERNELS)[1]
    assert LINE in run(TWO_KERNELS, NUMBA_CACHE_DIR=str(tmp_path / "another"))[1]


@pytest.mark.parametrize(("asked", "terminal", "announced"), [("", False, False), ("1", False, True), ("0", True, False)])
def test_what_is_no_terminal_is_told_only_where_it_asks(run: Run, asked: str, terminal: bool, announced: bool) -> None:
    _, written = run(TWO_KERNELS, terminal=terminal, STOKER_ANNOUNCE=asked)
    assert (LINE in written) == announced


def test_a_closed_standard_error_is_no_reason_not_to_compile(run: Run) -> None:
    closed = "import sys\nsys.stderr.close()" + TWO_KERNELS
    assert run(closed)[0] == "4 6 1.0\n"
    assert run("import sys\nsys.stderr = None" + TWO_KERNELS)[0] == "4 6 1.0\n"


def test_functions_of_others_are_not_announced(run: Run) -> None:
    assert run(FOREIGN) == ("2\n", "")


def test_a_command_announces_its_kernels(run: Run, tmp_path: Path) -> None:
    stoker.Store.from_arrays(lengths=[1, 3], x=np.arange(4.0)).save(tmp_path / "some.stoker")
    printed, written = run(COMMAND, "order", "some.stoker")
    assert "A batch of" in printed
    assert written.count(LINE) == 1
    assert LINE not in run(COMMAND, "order", "some.stoker")[1]

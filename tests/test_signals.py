"""Ctrl-C and SIGTERM at any moment of a command: one line, and 130 or 143."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from stoker import _signals

START = "import os, signal, sys, time\nfrom stoker._signals import handle_stops\nhandle_stops()\n"


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", START + code], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_within_an_import_the_process_ends(tmp_path: Path, number: int, code: int) -> None:
    """A module that turns any error into another one, as torch does."""
    (tmp_path / "large.py").write_text(
        f"import os\ntry:\n    os.kill(os.getpid(), {number})\n    sum(range(1000))\n"
        "except BaseException as error:\n    raise ImportError from error\n"
    )
    done = run("import large", tmp_path)
    assert (done.returncode, done.stderr) == (code, "stoker: stopped.\n")
    # Negative control: without the handlers it is another error.
    control = subprocess.run([sys.executable, "-c", "import large"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert control.returncode == (1 if number == signal.SIGINT else -number)


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")])
def test_elsewhere_an_error_is_raised(tmp_path: Path, number: int, name: str) -> None:
    done = run(
        f"try:\n    os.kill(os.getpid(), {number})\n    time.sleep(9)\nexcept BaseException as e:\n    print(type(e).__name__)",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, f"{name}\n")


LOST = """
class Value:
    def __del__(self):
        os.kill(os.getpid(), {number})
        sum(range(1000))
try:
    Value()
    for _ in range(500):
        time.sleep(0.01)
    print("went on")
except BaseException as error:
    print(type(error).__name__)
"""
"""A signal that comes in a destructor, where Python prints errors and goes on."""


@pytest.mark.parametrize(("number", "name"), [(signal.SIGINT, "KeyboardInterrupt"), (signal.SIGTERM, "Terminated")])
def test_a_signal_whose_error_cannot_be_raised_comes_again(tmp_path: Path, number: int, name: str) -> None:
    done = run(LOST.format(number=number), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{name}\n", "")
    # Negative control: with the hook of Python the signal is lost, and a traceback printed.
    control = run("sys.unraisablehook = sys.__unraisablehook__\n" + LOST.format(number=number), tmp_path)
    assert (control.stdout, "Exception ignored" in control.stderr) == ("went on\n", True)


def test_other_errors_that_cannot_be_raised_are_printed(tmp_path: Path) -> None:
    done = run("class Value:\n    def __del__(self):\n        raise KeyboardInterrupt\nValue()\nprint('went on')", tmp_path)
    assert (done.stdout, "Exception ignored" in done.stderr) == ("went on\n", True)


def test_ctrl_c_before_the_first_import_is_not_a_traceback(tmp_path: Path) -> None:
    def run(code: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    code = "import sys, stoker.__main__, _signal; print(_signal.getsignal(2) == _signal.SIG_DFL, 'signal' in sys.modules)"
    assert run(code).stdout == "True False\n"
    stop = "\nimport os, time\nos.kill(os.getpid(), 2)\ntime.sleep(5)"
    done = run(f"import stoker.__main__{stop}")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")  # a shell shows 130
    assert "KeyboardInterrupt" in run(stop).stderr, "the control: Python's own answer"


def test_ignored_signals_stay_ignored(tmp_path: Path) -> None:
    code = (
        f"import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n{START}os.kill(os.getpid(), signal.SIGINT)\nprint('alive')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "alive\n"


@pytest.mark.slow
@pytest.mark.parametrize("number", _signals.STOPS)
def test_a_command_is_stopped_at_many_moments(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "train.py").write_text("import torch\n")
    for moment in range(12):
        command = [sys.executable, "-m", "stoker", "diagnose", "train.py"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(0.3 + 0.2 * moment)
        process.send_signal(number)
        _, reported = process.communicate(timeout=60)
        assert process.returncode in (128 + number, 2), reported  # 2: the script ended before, without a step
        assert "Traceback" not in reported

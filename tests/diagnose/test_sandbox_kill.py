"""Stoker or the program is killed while a program is diagnosed: the user's files are as before, at the latest after the next run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.diagnose.home import make_home, state

from stoker.diagnose.sandbox import VARIABLE, Sandbox

pytestmark = pytest.mark.slow
PROGRAM = """
import os, time
from pathlib import Path
Path("model.pt").write_bytes(b"new")
os.rename("run", "elsewhere")
Path("elsewhere/new").write_bytes(b"new")
print(os.getpid(), flush=True)
while True:
    time.sleep(0.05)
    Path("log.txt").write_text("more")
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    make_home(tmp_path / "home")
    (tmp_path / "home" / "train.py").write_text(PROGRAM)
    return tmp_path / "home"


def start(home: Path, mode: str) -> tuple[subprocess.Popen[str], int]:
    """A diagnosis whose program has changed files, and the process of the program."""
    (home.parent / "user").mkdir(exist_ok=True)
    variables = {**os.environ, VARIABLE: mode, "HOME": str(home.parent / "user")}
    command = [sys.executable, "-m", "stoker", "diagnose", "train.py"]
    process = subprocess.Popen(command, cwd=home, env=variables, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    return process, next(int(line) for line in process.stderr if line.strip().isdigit())


@pytest.mark.parametrize("mode", ["overlay", "journal"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_program_is_killed(home: Path, mode: str, number: int) -> None:
    before = state(home)
    process, program = start(home, mode)
    os.kill(program, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"train.py was ended by {signal.Signals(number).name}" in told
    assert state(home) == before


@pytest.mark.parametrize("mode", ["overlay", "journal"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stoker_is_killed(home: Path, mode: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state(home)
    process, program = start(home, mode)
    process.send_signal(number)
    process.communicate(timeout=60)
    end = time.monotonic() + 20
    while number == signal.SIGKILL and time.monotonic() < end:  # the program ends when it can write no more
        try:
            os.kill(program, 0)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    if number == signal.SIGKILL and mode == "journal":
        assert state(home) != before
        monkeypatch.setenv("HOME", str(home.parent / "user"))
        monkeypatch.chdir(home.parent)
        with Sandbox(None):
            pass
    assert state(home) == before

"""Stoker or the program is killed while a program is diagnosed: the user's files are as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.diagnose.home import make_home, state

from stoker.diagnose.sandbox import SCRATCH, VARIABLE

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


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_program_is_killed(home: Path, mode: str, number: int) -> None:
    before = state(home)
    process, program = start(home, mode)
    os.kill(program, number)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 2
    assert f"train.py was ended by {signal.Signals(number).name}" in told
    assert state(home) == before


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_stoker_is_killed(home: Path, mode: str, number: int) -> None:
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
    assert state(home) == before


@pytest.mark.parametrize("mode", ["overlay", "landlock"])
def test_killed_at_any_moment_nothing_changes_and_the_next_run_leaves_new_files_alone(
    home: Path, mode: str, tmp_path: Path
) -> None:
    before = state(home)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    variables = {**os.environ, VARIABLE: mode, "HOME": str(tmp_path), "TMPDIR": str(temporary)}
    command = [sys.executable, "-m", "stoker", "diagnose", "train.py"]
    for moment in range(10):
        process = subprocess.Popen(
            command, cwd=home, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        time.sleep(0.1 + 0.25 * moment)
        process.kill()
        process.wait()
    end = time.monotonic() + 20
    while time.monotonic() < end and any("train.py" in line for line in running()):
        time.sleep(0.1)
    assert state(home) == before
    (home / "run" / "trained.pt").write_bytes(b"what the user has trained since")
    (home / "model.pt").write_bytes(b"trained")
    since = state(home)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("print('nothing to measure')")
    subprocess.run(command, cwd=elsewhere, env=variables, capture_output=True, check=False)
    assert state(home) == since
    assert [path.name for path in temporary.iterdir() if path.name.startswith(SCRATCH)] == []
    assert "stoker-diagnose" not in Path("/proc/self/mountinfo").read_text()


def running() -> list[str]:
    """The command lines of all processes that were started as a child of a diagnosis."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            continue
        lines += [line] if "stoker.diagnose.child" in line else []
    return lines

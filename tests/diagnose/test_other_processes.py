"""Programs that train in a process of their own: one line says what was seen, and what to run."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tests.diagnose import programs
from tests.diagnose.measuring import measure_script

from stoker.diagnose.measurements import Measurements
from stoker.diagnose.other_processes import diagnosed
from stoker.errors import TrainError

pytestmark = pytest.mark.promise("P17")

Run = Callable[..., Measurements]
REAL = """
import sys, torch
def train(number):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(number):
        model(torch.ones(8, 4)).sum().backward()
        optimizer.step()
if __name__ == "__main__":
    train(int(sys.argv[1]))
"""
PROCESS = """
import multiprocessing, os, time
from real import train
if __name__ == "__main__":
    multiprocessing.set_start_method("METHOD")
    idle = multiprocessing.Process(target=time.sleep, args=(600,))
    process = multiprocessing.Process(target=train, args=(STEPS,))
    idle.start() if "METHOD" == "fork" else None
    open(os.environ["STARTED"], "w").write(str(idle.pid)) if "METHOD" == "fork" else None
    process.start()
    process.join()
"""
FORK = PROCESS.replace("METHOD", "fork").replace("STEPS", "10**9")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    Path("real.py").write_text(REAL)

    def run(text: str, *arguments: str) -> Measurements:
        Path("train.py").write_text(text)
        return measure_script("train.py", arguments, quiet=True, pace=0.05)

    return run


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python real.py --epochs 2", "stoker diagnose real.py --epochs 2"),
        ("/usr/bin/python3.11 -u -W error real.py", "stoker diagnose real.py"),
        ("python -m package --name 'a b'", "stoker diagnose -m package --name 'a b'"),
        ("python -m package.module", "stoker diagnose -m package.module"),
        ("torchrun --nproc-per-node 2 real.py 1", "stoker diagnose real.py 1"),
        ("cd . && python real.py", "stoker diagnose real.py"),
        # Negative controls: programs that are not the user's, or not run.
        ("python -c 'print(1)' real.py", None),
        ("python -m pip install real.py", "stoker diagnose real.py"),
        ("python -m pip list", None),
        ("python gone.py", None),
        ("git add real.py", None),
        ("", None),
    ],
)
def test_the_program_of_a_command_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, expected: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("real.py").touch()
    Path("package").mkdir()
    Path("package/__main__.py").touch()
    Path("package/module.py").touch()
    assert diagnosed(shlex.split(command), None) == expected
    if expected is not None and "real.py" in expected:
        monkeypatch.chdir("/")
        assert diagnosed(shlex.split(command), tmp_path) == expected.replace("real.py", str(tmp_path / "real.py"))


@pytest.mark.slow  # seconds each: torch is imported in one process or two
@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "import subprocess, sys\nsubprocess.run([sys.executable, 'real.py', '20'])",
            r"train.py \(train.py:2\) started another Python program, python\S* real.py 20, and made no training step itself. "
            "Run: stoker diagnose real.py 20",
        ),
        (
            f"import os\nos.system('{sys.executable} real.py 20')",
            r"train.py \(train.py:2\) started another Python program, \S+ real.py 20, .* Run: stoker diagnose real.py 20",
        ),
        (
            "import os, sys\nos.execl(sys.executable, 'python', 'real.py', '1000000000')",
            r"train.py \(train.py:2\) replaces itself by another program, python\S* real.py 1000000000, which cannot be followed. "
            "Run: stoker diagnose real.py 1000000000",
        ),
        (
            PROCESS.replace("METHOD", "spawn").replace("STEPS", "20"),
            r"train.py \(train.py:10\) started a process that runs train \(real.py:3\), .* stoker diagnose train.py --name x",
        ),
    ],
    ids=["subprocess", "system", "exec", "spawn"],
)
def test_a_program_that_trains_elsewhere_says_where(run: Run, text: str, line: str) -> None:
    with pytest.raises(TrainError, match=line) as caught:
        run(text, "--name", "x")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_fork_that_trains_ends_the_diagnosis_and_leaves_no_process(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = tmp_path.with_name(f"{tmp_path.name}.pid")
    monkeypatch.setenv("STARTED", str(started))
    what = r"train.py \(real.py:8\) trains in a process that it has started, which cannot be measured"
    with pytest.raises(TrainError, match=what + ". Train in the main process, and run: stoker diagnose train.py"):
        run(FORK)
    with contextlib.suppress(psutil.NoSuchProcess):
        idle = psutil.Process(int(started.read_text()))
        while idle.status() != psutil.STATUS_ZOMBIE:  # in a container whose first process reaps no others, it stays one
            time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        "import multiprocessing, real\nmultiprocessing.get_context('fork').Process(target=real.train, args=(200,)).start()\n",
        "import subprocess, sys\nsubprocess.run([sys.executable, 'real.py', '1'])\n",
    ],
    ids=["fork", "subprocess"],
)
def test_negative_control_a_program_that_trains_itself_is_measured_whatever_it_starts(run: Run, other: str) -> None:
    measured = run(other + programs.PLAIN, "0")
    assert len(measured.loop.seconds) >= 12

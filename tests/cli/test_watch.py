"""`stoker watch`: a script with its own output and exit code, and the folder of a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done

from stoker.cli import watch as command
from stoker.train.run import Run
from stoker.watch.cause import Slowdown

Stoker = Callable[..., Done]
SLOWDOWN = Slowdown(
    step=5000,
    since=4928,
    before_seconds=0.01,
    after_seconds=0.012,
    cause="loader",
    evidence="a step waits 2 ms longer for its batch",
)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run", config={})


def test_slowdowns_of_a_run_are_shown(run: Run, stoker: Stoker) -> None:
    run.note_slowdown(SLOWDOWN)
    run.end("finished")
    done = stoker("watch", str(run.folder))
    assert (done.code, done.out) == (0, f"{SLOWDOWN}\n")
    done = stoker("watch", "--once", "--json", str(run.folder))
    assert (done.code, json.loads(done.out)) == (0, {"slowdowns": [SLOWDOWN.as_dict()]})


def test_a_run_in_progress_is_followed_to_its_end(run: Run, stoker: Stoker, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps = []

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if len(sleeps) == 2:
            run.note_slowdown(SLOWDOWN)
        if len(sleeps) == 3:
            run.end("finished")

    monkeypatch.setattr(command.time, "sleep", sleep)
    done = stoker("watch", str(run.folder))
    assert (done.out, len(sleeps)) == (f"{SLOWDOWN}\n", 3)


@pytest.mark.slow
def test_a_script_keeps_its_output_and_exit_code(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import sys\nprint('out', sys.argv[1:])\nprint('err', file=sys.stderr)\nsys.exit(3)\n")
    printed, said = "out ['--epochs', '2']\n", f"stoker: watching {path} …\n"
    for words, out, err in (
        ([str(path)], printed, f"{said}err\n"),
        (["-q", "-m", "train"], "", "err\n"),
        (["--json", str(path)], '{"slowdowns": []}\n', f"{printed}err\n"),
    ):
        call = [sys.executable, "-m", "stoker", "watch", *words, "--epochs", "2"]
        done = subprocess.run(call, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (3, out, err)

"""A script that is named with its launcher, as in the README of the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from stoker.cli import command as base
from stoker.cli.launchers import ScriptCall, launch


@pytest.fixture
def ctx() -> click.Context:
    context = click.Context(click.Command("diagnose"), info_name="diagnose")
    context.meta[base.OPTIONS] = ["--seconds", "9", "-q"]
    return context


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands that replaced this process."""
    commands: list[list[str]] = []

    def execvpe(file: str, words: list[str], environment: dict[str, str]) -> None:
        commands.append(words)
        raise SystemExit

    monkeypatch.setattr(os, "execvpe", execvpe)
    monkeypatch.setattr("shutil.which", lambda name: f"/bin/{name}" if name != "deepspeed" else None)
    return commands


def program(text: str) -> ScriptCall:
    script, *arguments = text.split()
    return ScriptCall(script, tuple(arguments), is_module=False)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torchrun --nproc-per-node 2 train.py --lr 1", "torchrun --nproc-per-node 2 -m stoker diagnose OPTIONS train.py --lr 1"),
        (
            "torchrun --nproc-per-node=2 -m pkg.train a.py",
            "torchrun --nproc-per-node=2 -m stoker diagnose OPTIONS -m pkg.train a.py",
        ),
        ("accelerate launch --cpu train.py -m x", "accelerate launch --cpu -m stoker diagnose OPTIONS train.py -m x"),
    ],
)
def test_a_launcher_starts_the_command_in_its_workers(
    ctx: click.Context, started: list[list[str]], text: str, expected: str
) -> None:
    with pytest.raises(SystemExit):
        launch(ctx, program(text))
    assert " ".join(started[0]) == expected.replace("OPTIONS", "--seconds 9 -q")


SCRIPT = """
import os, sys, torch
torch.distributed.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    model(torch.randn(16, 8)).pow(2).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_torchrun_is_measured_in_its_workers(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "stoker", "diagnose", "-q", "--json", "--seconds", "5", "torchrun", "--standalone"]
    command += ["--nproc-per-node", "2", "train.py", "100000"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=240, check=False)
    assert len(json.loads(done.stdout)["measurements"]["ranks"]) == 2, done.stderr[-2000:]
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), "with and without a verdict"

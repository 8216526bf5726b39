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
from stoker.cli.launchers import ScriptCall, launch, words_of_launcher
from stoker.errors import OptionError


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
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/bin/{name}" if path is None and name != "deepspeed" else None)
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


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The programs of an environment that is not activated: its interpreter runs, and PATH does not lead there."""
    programs = tmp_path / "environment" / "bin"
    programs.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "elsewhere"))
    return programs


def install(launcher: Path) -> str:
    launcher.parent.mkdir(exist_ok=True)
    launcher.write_text("")
    launcher.chmod(0o755)
    return str(launcher)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["nowhere else", "another in PATH"])
def test_a_launcher_beside_the_interpreter_needs_no_activated_environment(
    ctx: click.Context, environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, elsewhere: bool
) -> None:
    """One of another environment could not import Stoker in its workers."""
    commands: list[list[str]] = []
    monkeypatch.setattr(os, "execvpe", lambda file, words, variables: commands.append(words))
    here = install(environment / "accelerate")
    if elsewhere:
        install(tmp_path / "elsewhere" / "accelerate")
    launch(ctx, program("accelerate launch --cpu train.py"))
    assert commands == [[here, *"launch --cpu -m stoker diagnose --seconds 9 -q train.py".split()]]
    assert words_of_launcher("accelerate", ("launch", "a.py", "b.py")) == ((here, "launch"), "a.py", ("b.py",))


def test_a_launcher_that_is_nowhere_is_not_installed(ctx: click.Context, environment: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="accelerate is not installed"):
        launch(ctx, program("accelerate launch train.py"))
    with pytest.raises(OptionError, match="accelerate is not installed"):
        words_of_launcher("accelerate", ("launch", "a.py"))
    install(tmp_path / "elsewhere" / "accelerate")
    assert words_of_launcher("accelerate", ("launch", "a.py"))[0] == ("accelerate", "launch"), "PATH leads there"


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

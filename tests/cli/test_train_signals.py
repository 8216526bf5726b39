"""Ctrl-C and SIGTERM in a training: the step is finished, everything is saved, and the run goes on to the same weights."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.cli.calling import Done, call, stoker_command
from tests.cli.test_main_signals import start, wait_for
from tests.cli.test_train import latest
from tests.cli.training_folder import make_folder

SETS = (
    "epochs=6",
    "model=own.py:make",
    "loss=own.py:slow",
    "columns=[close]",
    "target=[close]",
    "metrics=[]",
    "checkpoints.every=1",
)


def train(folder: str, seconds: float) -> list[str]:
    sets = (*SETS, f"folder={folder}", f"loss.options.seconds={seconds}")
    return ["train", "c.yaml", "--quiet", *[part for one in sets for part in ("--set", one)]]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow)])
def test_a_stopped_training_continues(
    stoker: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals, code: int
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))  # a resume with another number is warned of
    monkeypatch.chdir(make_folder(tmp_path))
    process = start(stoker_command(*train("stopped", 0.3)), tmp_path)
    wait_for((tmp_path / "stopped" / "checkpoints" / "LATEST").exists, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=200)
    step = latest(tmp_path / "stopped").step
    assert step < 36
    line = f"stoker: stopped. The run is saved at step {step}. Resume it: stoker train --resume stopped\n"
    assert (process.returncode, err) == (code, line)
    quicker = ("--set", "loss.options.seconds=0", "--allow", "loss.options")
    done = stoker("train", "--resume", "stopped", "--quiet", *quicker)
    assert done.code == 0, done.err
    whole = stoker(*train("whole", 0))
    assert whole.code == 0, whole.err
    one, other = latest(tmp_path / "stopped"), latest(tmp_path / "whole")
    assert one.step == other.step == 36
    for name, tensor in one.parts["model"].items():
        assert torch.equal(tensor, other.parts["model"][name]), name


@pytest.mark.promise("P13")
@pytest.mark.slow
def test_a_training_run_that_is_stopped_before_its_first_step_says_that_nothing_is_saved(tmp_path: Path) -> None:
    make_folder(tmp_path)
    own = tmp_path / "own.py"
    stop = "import os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)"
    text = own.read_text() + f"\n\ndef stopped(model, batch):\n    {stop}\n    return slow(model, batch)\n"
    own.write_text(text)
    sets = [part for one in (*SETS[:2], "loss=own.py:stopped", *SETS[3:], "folder=x") for part in ("--set", one)]
    done = call(stoker_command("train", "c.yaml", "--quiet", *sets), tmp_path)
    line = "stoker: stopped before anything was saved. Begin again: stoker train --resume x\n"
    assert (done.code, done.err) == (130, line)
    assert not (tmp_path / "x" / "checkpoints").exists()
    own.write_text(text.replace(stop, "pass"))
    assert call(stoker_command("train", "--resume", "x", "--quiet"), tmp_path).code == 0

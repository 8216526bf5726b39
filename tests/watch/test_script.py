"""A script that is watched: hooks time its steps and change nothing else."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from stoker.watch import loop as watches
from stoker.watch.detector import BLOCK
from stoker.watch.loop import Watch
from stoker.watch.script import ScriptHooks, run_script


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Puts back what a script changes of its process."""
    monkeypatch.setattr(sys, "argv", [*sys.argv])
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def train(optimizers: list[torch.optim.Optimizer], loader: Any, steps: int) -> None:
    done = 0
    while done < steps:
        for _ in loader:
            for optimizer in optimizers:
                optimizer.step()
            done += 1


def optimizers(number: int) -> list[torch.optim.Optimizer]:
    return [torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1) for _ in range(number)]


def test_steps_and_waits_are_timed_until_the_hooks_are_removed() -> None:
    loader = DataLoader(TensorDataset(torch.zeros(50, 1)), batch_size=1)
    original = type(iter(loader)).__next__
    watched = Watch[Any](None, None)
    hooks = ScriptHooks(watched)
    hooks.install()
    assert type(iter(loader)).__next__ is not original
    train(optimizers(1), loader, 50)
    hooks.remove()
    assert watched.steps == 49, "the first begins before its optimizer is known"
    assert 0 < watched.wait_share < 1
    assert type(iter(loader)).__next__ is original
    train(optimizers(1), loader, 50)
    assert watched.steps == 49, "negative control: without hooks nothing is counted"


@pytest.mark.usefixtures("process")
def test_a_script_runs_as_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "beside.py").write_text("name = 'beside'\n")
    path = tmp_path / "train.py"
    path.write_text("import sys, beside\nprint(__name__, sys.argv[1:], beside.name, __file__)\nsys.exit(5)\n")
    with pytest.raises(SystemExit) as ended:
        run_script(str(path), ["--lr", "1"], report=print)
    assert ended.value.code == 5
    assert capsys.readouterr().out == f"__main__ ['--lr', '1'] beside {path}\n"
    assert watches.listener is None
    assert not (tmp_path / "__pycache__" / "train.cpython-311.pyc").exists()


@pytest.mark.promise("P22")
@pytest.mark.usefixtures("process")
def test_a_slowdown_of_a_script_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    steps = 4000 + 4000 // BLOCK  # the clock is read once more after each block
    slow_from = 3610 + 3610 // BLOCK
    spent = np.where(np.arange(steps) < slow_from, 1e6, 1.5e6) * (1 + 0.02 * rng.standard_normal(steps))
    times = iter([*np.cumsum(spent).astype(int).tolist(), *[int(1e12)] * 9])
    monkeypatch.setattr(watches, "now_ns", lambda: next(times))
    path = tmp_path / "train.py"
    path.write_text(
        "import torch\n"
        "optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)\n"
        "for step in range(4000):\n    optimizer.step()\n"
    )
    lines: list[str] = []
    run_script(str(path), [], report=lambda line, slowdown: lines.append(line))
    (line,) = lines
    assert line.startswith("step 3,6")
    assert " slower since step 3,6" in line

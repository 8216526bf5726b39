"""The fixture `stoker_gate`, as a project of its own would use it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stoker.gate import pytest_plugin

ROOT = Path(__file__).parents[2]
TEST = """
import os
import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def train_step(x):
    optimizer.zero_grad()
    loss = model(x).pow(2).mean()
    loss.backward()
    optimizer.step()
    if "SLOW" in os.environ:
        print(loss.item())

def test_step(stoker_gate):
    gate = stoker_gate(train_step, [torch.randn(4, 8)], budget="budgets/step.json", steps=8)
    assert gate.ok
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_step.py").write_text(TEST)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # those of others take long to load

    def run(*options: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "pytest", "-q", "-p", pytest_plugin.__name__, "-p", "no:cacheprovider", *options, "tests"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280, check=False)
        return done.returncode, done.stdout

    return run


@pytest.mark.promise("P22")
@pytest.mark.slow  # tests/cli/test_gate.py does the same by the command
def test_a_budget_is_written_kept_and_defended(
    run: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out = run()
    assert code == 1
    assert "step.json is not there; expected a budget. Write it with pytest --stoker-write." in out
    assert run("--stoker-write")[0] == 0
    assert json.loads((tmp_path / "tests" / "budgets" / "step.json").read_text())["schema"] == 1
    assert run()[0] == 0
    monkeypatch.setenv("SLOW", "1")
    code, out = run()
    assert code == 1
    assert "syncs: 1 per step, allowed 0" in out
    assert "+1 test_step.py train_step: print(loss.item()) (tests/test_step.py:14)" in out
    assert "Traceback" not in out


def test_the_plugin_is_light(run_python: Callable[..., str]) -> None:
    out = run_python(
        f"import sys, {pytest_plugin.__name__}; print([one for one in ('torch', 'numba', 'pyarrow') if one in sys.modules])"
    )
    assert out == "[]\n"

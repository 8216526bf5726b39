"""One run in a fresh process: how it ends, and what is said where it fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from stoker.compare.child import Starter
from stoker.compare.sides import Version, prepared
from stoker.errors import TrainError

STEPS = """import torch
w = torch.nn.Parameter(torch.ones(2))
opt = torch.optim.SGD([w], 0.1)
for i in range(10):
    w.sum().backward(); opt.step()
"""
TRAINING = """import sys, torch
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(256, 64), torch.randn(256, 1))
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1))
opt = torch.optim.AdamW(model.parameters())
for epoch in range(3):
    for x, y in torch.utils.data.DataLoader(data, batch_size=32, shuffle=True, num_workers=epoch):
        opt.zero_grad(); (model(x) - y).square().mean().backward(); opt.step()
print((*sys.argv[1:], __name__), torch.get_num_threads() * 0)
"""


@pytest.fixture(scope="module", params=[False, True], ids=["python", "fork"])
def starter(request: pytest.FixtureRequest) -> Iterator[Starter | None]:
    """Start runs as interpreters of their own, or as forks of one."""
    with Starter() if request.param else nullcontext() as started:
        yield started


def test_all_ways_to_start_a_run_give_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(TRAINING)
    with prepared(Version(program=str(path))) as side, Starter() as starter:
        runs = [side.run(["x"], whole=True, starter=start) for start in (None, starter, starter)]
    assert runs[0].losses == runs[1].losses == runs[2].losses
    assert runs[0].output == runs[1].output == "('x', '__main__') 0\n"
    assert len(runs[0].losses) == 24


def test_a_run_ends_with_the_process_that_starts_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(STEPS + "import time; time.sleep(1000)\n")
    with prepared(Version(program=str(tmp_path / "train.py"))) as side, Starter() as starter:
        starter._process.kill()
        with pytest.raises(TrainError, match="has ended"):
            side.run([], starter=starter)


def test_forks_share_imports_unless_they_start_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "calm.py").write_text("")
    (tmp_path / "threaded.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[600], daemon=True).start()\n"
    )
    path = tmp_path / "train.py"
    path.write_text("import sys\nprint('calm' in sys.modules, 'threaded' in sys.modules)\n" + STEPS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outputs = []
    for modules in (["calm", "no_such_module"], ["calm", "threaded"]):
        with prepared(Version(program=str(path))) as side, Starter(modules) as starter:
            outputs.append(side.run([], whole=True, starter=starter).output)
    assert outputs == ["True False\n", "False False\n"]


def test_timed_runs_have_no_hooks_but_those_of_steps_and_losses(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    spots = ("torch.nn.Module.__call__", "torch.utils.data.dataloader._BaseDataLoaderIter.__next__", "torch.autograd.backward")
    path.write_text(STEPS + f"print([hasattr(spot, '__wrapped__') for spot in ({', '.join(spots)})])\n")
    with prepared(Version(program=str(path))) as side:
        outputs = [side.run([], whole=True, observe=observe).output for observe in (False, True)]
    assert outputs == ["[False, False, True]\n", "[True, True, True]\n"]


def test_variables_that_libraries_have_read_already_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text("import os\nos.environ['OMP_NUM_THREADS'] = '3'\nos.environ['MY_OWN'] = '3'\n" + STEPS)
    with prepared(Version(program=str(path))) as side:
        seen = side.run([], whole=True, observe=True)
    assert seen.variables == ["OMP_NUM_THREADS"]
    assert "torch.optim.sgd" in seen.modules


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STEPS + "raise SystemExit(7)\n", "ended with exit code 7"),
        (STEPS + "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n", "was ended by SIGKILL"),
        (STEPS + "x = 1 / 0\n", r"raised ZeroDivisionError \(train.py:6\)"),
        ("x = (\n", "raised SyntaxError"),
        (STEPS + "import time; time.sleep(1000)\n", "time limit"),
    ],
)
def test_a_run_that_fails_says_why(tmp_path: Path, text: str, words: str, starter: Starter | None) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with prepared(Version(program=str(path))) as side, pytest.raises(TrainError, match=words):
        side.run([], whole=True, time_limit=20 if "sleep" in text else 200, starter=starter)


def test_a_module_is_run_like_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").write_text("")
    text = "from . import helper\nimport sys\n" + STEPS + "print(__name__, sys.argv[1:], helper.x)\n"
    (tmp_path / "package" / "train.py").write_text(text)
    (tmp_path / "package" / "helper.py").write_text("x = 3\n")
    monkeypatch.chdir(tmp_path)
    with prepared(Version(program="package.train", module=True)) as side:
        seen = side.run(["--a"], whole=True, observe=True, time_limit=200)
    assert seen.output == "__main__ ['--a'] 3\n"
    assert {Path(name).name for name in seen.code} >= {"helper.py", "train.py"}

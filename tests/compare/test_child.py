"""One run in a fresh process: how it ends, and what is said where it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.compare.sides import Version, prepared
from stoker.errors import TrainError

STEPS = """import torch
w = torch.nn.Parameter(torch.ones(2))
opt = torch.optim.SGD([w], 0.1)
for i in range(10):
    w.sum().backward(); opt.step()
"""


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
def test_a_run_that_fails_says_why(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with prepared(Version(program=str(path))) as side, pytest.raises(TrainError, match=words):
        side.run([], whole=True, time_limit=20 if "sleep" in text else 200)


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

"""The fixture `stoker_compare`, as a project of its own would use it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.compare.traps import BEFORE, edited

from stoker.compare import pytest_plugin

TEST = """
def test_equal(stoker_compare):
    assert stoker_compare("old.py", "fused.py", budget=0, steps=20).losses.verdict == "rounding"

def test_changed(stoker_compare):
    stoker_compare("old.py", "changed.py", budget=0, steps=20)
"""


def test_a_test_fails_where_the_requirement_does_not_hold(tmp_path: Path) -> None:
    for name, text in (("old", BEFORE), ("fused", edited("fused optimizer")), ("changed", edited("bfloat16")), ("test_it", TEST)):
        (tmp_path / f"{name}.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-p", pytest_plugin.__name__, "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "CHANGED" in done.stdout

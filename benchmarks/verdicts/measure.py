"""The time of a step of a program, by nothing but a hook after each step of an optimizer: how it is known that a cause is in it."""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).parent.parent.parent


class Enough(SystemExit):
    """Enough steps were seen."""


def step_seconds(
    script: str, arguments: Sequence[str], *, seconds: float = 3.0, environment: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Median time of a step, by the wall and by the processor, in a fresh process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.verdicts.measure", str(seconds), script, *arguments]
        variables = {**os.environ, **(environment or {}), "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} {' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def _run(seconds: float, script: str, arguments: Sequence[str]) -> None:
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    del torch
    walls: list[float] = []
    cpus: list[float] = []

    def after_step(*_: Any) -> None:
        walls.append(time.perf_counter())
        cpus.append(time.process_time())
        if len(walls) > 8 and walls[-1] - walls[3] > seconds:
            raise Enough(0)

    register_optimizer_step_post_hook(after_step)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(PROGRAMS))
    with contextlib.suppress(Enough):
        runpy.run_path(str(PROGRAMS / script), run_name="__main__")
    steps = [b - a for a, b in pairwise(walls[3:])]
    work = [b - a for a, b in pairwise(cpus[3:])]
    print(json.dumps({"wall": statistics.median(steps), "cpu": statistics.mean(work), "steps": len(steps)}))


if __name__ == "__main__":
    _run(float(sys.argv[1]), sys.argv[2], sys.argv[3:])

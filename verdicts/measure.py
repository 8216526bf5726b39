"""Ablation: the time of a step of a program with its cause and without it, by nothing but a hook after each step of an optimizer.

The mean step by the wall clock and by the processor's, so that what happens in every 25th step counts as well. Both sides run in
processes of their own, in turn: forks of one that has imported torch, or fresh ones where a program has several processes or variables
that torch reads when it is imported.
"""

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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verdicts.forked import Forker
from verdicts.table import Program
from verdicts.table.fixes import fixed_source

ROOT = Path(__file__).parent.parent
FIRST, FEWEST = 3, 12
"""Steps that are not counted, and that are needed."""
PERIODS = 100
"""Steps that are needed where a cause comes every few steps."""
LONGEST = 15.0
TIMEOUT = 60.0
Side = dict[str, float]


class Enough(SystemExit):
    """Enough steps were seen."""


def ablate(
    program: Program, *, data: Path | None = None, rounds: int = 1, seconds: float = 1.5, processor_time: bool = False
) -> dict[str, Any]:
    """The share of the time that is gone with the fix of a program, and with that of its second cause.

    `gain` is by the wall clock and `gain_cpu` by the processor's. With `processor_time`, for a machine that others use, both are by the
    processor's; set OMP_NUM_THREADS=1 then, as threads that wait for each other count as busy.
    """
    sides = {"with": program.words, "without": program.clean_words}
    if program.second_clean is not None:
        sides["without_second"] = program.second_clean_words
    times: dict[str, list[Side]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side, words in sides.items():
            edited = program.edited and side == "without"
            times[side].append(step_seconds(program, words, edited=edited, data=data, seconds=seconds))
    means = {side: {key: statistics.fmean(one[key] for one in found) for key in found[0]} for side, found in times.items()}
    clock = "cpu" if processor_time else "wall"
    row: dict[str, Any] = {"step_ms": round(means["with"][clock] * 1e3, 3), "gain_clock": clock}
    for side, name in (("without", "gain"), ("without_second", "second_gain")):
        if side in means:
            row[name] = round(1 - means[side][clock] / means["with"][clock], 3)
            row[f"{name}_cpu"] = round(1 - means[side]["cpu"] / means["with"]["cpu"], 3)
    return row


def step_seconds(
    program: Program, words: Sequence[str], *, edited: bool = False, data: Path | None = None, seconds: float = 1.5
) -> Side:
    """The mean step of a program, by the wall and by the processor, in a fresh process and a folder of its own."""
    fewest = PERIODS if program.kind == "everyday" else FEWEST
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        script = program.path
        if data is not None:
            (Path(folder) / "data").symlink_to(data)
        if edited:
            script = Path(folder) / program.script
            script.write_text(fixed_source(program.path.stem, program.path.read_text()))
        if program.processes > 1 or program.environment:
            printed, ended = _in_fresh_process(program, words, script, Path(folder), seconds=seconds, fewest=fewest)
        else:
            arguments = [seconds, fewest, str(script), list(words)]
            printed = Forker.of_thread().run("verdicts.measure:run_script", arguments, folder=Path(folder), limit=TIMEOUT)
            ended = " | ".join(printed[-8:])
    lines = [line for line in printed if line.startswith('{"wall"')]
    if not lines:
        raise RuntimeError(f"{script.name} {' '.join(words)} measured no step: {ended[-2000:]}")
    answer: Side = json.loads(lines[0])
    return answer


def _in_fresh_process(
    program: Program, words: Sequence[str], script: Path, folder: Path, *, seconds: float, fewest: int
) -> tuple[list[str], str]:
    """The lines that a run prints, and how it ended."""
    command = [sys.executable, "-m", "verdicts.measure", str(seconds), str(fewest), str(script), *words]
    if program.processes > 1:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={program.processes}", "-m"]
        command[2:3] = [*launcher, command[2]]
    variables = {**os.environ, **program.environment, "PYTHONPATH": os.pathsep.join([str(ROOT), *_path()])}
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=TIMEOUT)
    return done.stdout.splitlines(), f"ended with {done.returncode}: {done.stderr}"


def _path() -> list[str]:
    return [word for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]


def stop_after(seconds: float, fewest: int = FEWEST) -> dict[str, list[tuple[float, float]]]:
    """End this process by `Enough` after this number of seconds of steps; returns the list to which the time of each step is added."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    seen: dict[str, list[tuple[float, float]]] = {"optimizer": [], "backward": []}

    def after(kind: str) -> None:
        marks = seen[kind]
        marks.append((time.perf_counter(), time.process_time()))
        if kind == "backward" and seen["optimizer"]:
            return  # only where weights are updated by hand
        passed = marks[-1][0] - marks[min(FIRST, len(marks) - 1)][0]
        if (passed > seconds and len(marks) > FIRST + fewest) or (passed > max(LONGEST, seconds) and len(marks) > FIRST + 2):
            raise Enough(0)

    backward = torch.Tensor.backward

    def counted(tensor: torch.Tensor, *args: Any, **options: Any) -> None:
        backward(tensor, *args, **options)
        after("backward")

    register_optimizer_step_post_hook(lambda *_: after("optimizer"))
    torch.Tensor.backward = counted  # type: ignore[method-assign]
    return seen


def run_script(seconds: float, fewest: int, script: str, arguments: Sequence[str]) -> None:
    """Run a script for some seconds and print the time of a step."""
    seen = stop_after(seconds, fewest)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    with contextlib.suppress(Enough):
        runpy.run_path(script, run_name="__main__")
    marks = seen["optimizer"] if len(seen["optimizer"]) > FIRST + 2 else seen["backward"]
    (wall_0, cpu_0), (wall_1, cpu_1) = marks[FIRST], marks[-1]
    steps = len(marks) - 1 - FIRST
    answer = json.dumps({"wall": (wall_1 - wall_0) / steps, "cpu": (cpu_1 - cpu_0) / steps, "steps": steps})
    print("", answer, sep="\n", flush=True)


if __name__ == "__main__":
    run_script(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])

"""What each suspect of the programs of `gpu/` costs: the mean step with it and without it, and the causes that these times accept.

    python -m verdicts.ablations --only gpu- --out FILE --until SECONDS

Every side runs in fresh processes, in turn: unchanged, without the first suspect, without the second, and again. A process counts the
steps of its optimizers and nothing else: it synchronizes at the start and at the end of its timed window alone.

A process takes seconds to start, in which the GPU idles. So some start ahead (`--ahead`): each waits at a lock after its first step,
within the hook of its optimizer, so that it issues nothing. It warms up and is timed while it holds the lock.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import runpy
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import record

from verdicts.needs import can_run
from verdicts.table import APART, ON_GPU, Program

QUESTION = "How much of the step time of each GPU program does the removal of each of its suspects save?"
ROOT = Path(__file__).parent.parent
UNCHANGED = "unchanged"
WORK = ("compute", "memory", "kernel", "precision")
LEAST_SAVED, ALIKE = 0.10, 1.25
"""The share of the step that a removal must save to be a cause, and the factor between savings that are taken as equal."""
WARM_UP, FEWEST_STEPS, PERIODS = 8, 40, 3
SECONDS, LONGEST = 1.5, 25.0
"""Of a timed window; a window of few slow steps ends after the second."""
TIMEOUT = 180.0
LAST_START = 40.0
"""How long before the end of `--until` the last process is started."""
Row = dict[str, Any]


def accepted(seconds: Mapping[str, float], stated: str) -> list[str]:
    """The verdicts that the step times of all sides accept; `stated` decides between kinds of work where no removal saves a tenth."""
    unchanged = seconds[UNCHANGED]
    saved = {cause: unchanged - time_without for cause, time_without in seconds.items() if cause != UNCHANGED}
    largest = max(saved.values(), default=0.0)
    if largest < LEAST_SAVED * unchanged:
        return [stated] if stated in WORK else list(WORK[:3])
    causes = sorted((cause for cause in saved if saved[cause] * ALIKE >= largest), key=lambda cause: -saved[cause])
    # A smaller model takes every kind of work away: which one it is, the kernel times of a profile said when it was stated.
    return [stated if cause in WORK and stated in WORK else cause for cause in causes]


def accepted_causes(program: Program) -> list[str]:
    """The accepted causes of a program by the kept ablations; its stated causes where it has none."""
    causes: list[str] = _kept().get(program.name, {}).get("accepted", [program.verdict, *program.also])
    return causes


@cache
def _kept() -> dict[str, Row]:
    return _known(record.RESULTS / "gpu_ablations.json")


def _known(path: Path) -> dict[str, Row]:
    rows: list[Row] = json.loads(path.read_text())["programs"] if path.exists() else []
    return {row["name"]: row for row in rows}


def summarize(program: Program, rounds: Mapping[str, Sequence[float]], errors: Mapping[str, str]) -> Row:
    """Build the row of a program from the seconds per step that its sides had in each round."""
    seconds = {side: statistics.fmean(times) for side, times in rounds.items() if times}
    row: Row = {
        "name": program.name,
        "stated": program.verdict,
        "step_ms": {side: round(1e3 * value, 4) for side, value in seconds.items()},
        "rounds_ms": {side: [round(1e3 * value, 4) for value in times] for side, times in rounds.items()},
        "spread": {side: round((max(times) - min(times)) / seconds[side], 3) for side, times in rounds.items() if times},
    }
    if UNCHANGED in seconds:
        row["saved"] = {side: round(1 - value / seconds[UNCHANGED], 3) for side, value in seconds.items() if side != UNCHANGED}
    if seconds.keys() == {UNCHANGED, *program.without}:
        row["accepted"] = accepted(seconds, program.verdict)
    return row | ({"errors": dict(errors)} if errors else {})


def step_seconds(program: Program, side: str, lock: Path) -> float:
    """Measure the mean step of one side of a program in a fresh process."""
    words = [*program.words, *(("--without", side) if side != UNCHANGED else ())]
    fewest = PERIODS * program.period if program.period > 1 else FEWEST_STEPS
    command = [
        sys.executable,
        "-m",
        __spec__.name,
        "--timed",
        str(lock),
        str(fewest),
        str(program.period),
        str(program.path),
        *words,
    ]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        subprocess.Popen(command, cwd=folder, env=variables, start_new_session=True, **pipes) as process,
    ):
        try:
            out, reported = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"took more than {TIMEOUT:.0f} s") from None
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with its workers
    answers = [line for line in out.splitlines() if line.startswith('{"seconds"')]
    if not answers:
        raise RuntimeError(f"measured no step: {reported[-600:]}")
    return float(json.loads(answers[-1])["seconds"])


def run_timed(lock: str, fewest: int, period: int, script: str, arguments: Sequence[str]) -> None:
    """Run a script up to the end of its timed window, print the mean step, and end the process."""
    import torch
    from torch.optim.optimizer import register_optimizer_step_post_hook

    def settle() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    warm_up = max(WARM_UP, period)
    file = Path(lock).open("a")  # noqa: SIM115 - held until the process ends
    steps, start = -1 - warm_up, 0.0

    def after(*_: object) -> None:
        nonlocal steps, start
        steps += 1
        if steps == -warm_up:
            settle()
            fcntl.flock(file, fcntl.LOCK_EX)
        elif steps == 0:
            settle()
            start = time.perf_counter()
        elif steps > 0 and steps % period == 0:
            passed = time.perf_counter() - start
            if (passed >= SECONDS and steps >= fewest) or passed >= LONGEST:
                settle()
                answer = json.dumps({"seconds": (time.perf_counter() - start) / steps, "steps": steps})
                print("", answer, sep="\n", flush=True)
                os._exit(0)

    register_optimizer_step_post_hook(after)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")


def measure(programs: Sequence[Program], path: Path, *, rounds: int, ahead: int, until: float) -> dict[str, Row]:
    """Time all sides of the programs and write each result as it comes; returns all rows of the file."""
    rows, end = _known(path), time.monotonic() + until

    def timed(program: Program, side: str, lock: Path) -> float | None:
        return step_seconds(program, side, lock) if time.monotonic() < end - LAST_START else None

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(ahead + 1) as pool:
        lock = Path(folder) / "lock"
        jobs = [
            (
                program,
                [(side, pool.submit(timed, program, side, lock)) for _ in range(rounds) for side in (UNCHANGED, *program.without)],
            )
            for program in programs
        ]
        for program, sides in jobs:
            row = _gather(program, sides)
            if row is not None:
                rows[program.name] = row
                print(json.dumps(row), flush=True)
                record.save("gpu_ablations", QUESTION, {"programs": list(rows.values())}, path=path, show=False)
    return rows


def _gather(program: Program, sides: Sequence[tuple[str, Future[float | None]]]) -> Row | None:
    """Wait for the sides of a program; None where there was no time for any."""
    rounds: dict[str, list[float]] = {side: [] for side in (UNCHANGED, *program.without)}
    errors: dict[str, str] = {}
    for side, answer in sides:
        try:
            seconds = answer.result()
        except RuntimeError as error:
            errors[side] = str(error)
        else:
            rounds[side] += [seconds] if seconds is not None else []
    return summarize(program, rounds, errors) if errors or any(rounds.values()) else None


def main() -> None:
    """Measure the programs that were asked for."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", metavar="NAME", default=[""], help="Programs whose names begin so.")
    parser.add_argument("--out", type=Path, default=record.RESULTS / "gpu_ablations.json", metavar="FILE")
    parser.add_argument(
        "--until", type=float, default=float("inf"), metavar="SECONDS", help="Start no process that would end later."
    )
    parser.add_argument("--missing", action="store_true", help="Only programs without accepted causes in the result file.")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--ahead", type=int, default=3, help="Processes that start while another one is timed.")
    asked = parser.parse_args()
    known = _known(asked.out) if asked.missing else {}
    chosen = [
        one for one in (*ON_GPU, *APART) if one.name.startswith(tuple(asked.only)) and "accepted" not in known.get(one.name, {})
    ]
    rows = measure([one for one in chosen if can_run(one)], asked.out, rounds=asked.rounds, ahead=asked.ahead, until=asked.until)
    left = [one.name for one in chosen if "accepted" not in rows.get(one.name, {})]
    if left:
        print(f"without accepted causes (--missing runs them): {' '.join(left)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--timed"]:
        run_timed(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5], sys.argv[6:])
    else:
        main()

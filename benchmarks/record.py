"""Records: measurements side by side in one interleaved run, and the file that keeps them.

Ratios are taken pair by pair within a round, so that a neighbour's load hits both sides; the spread is that of the
pairs. A record names the command, the machine and the commit it was made with.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
ROOT = Path(__file__).parent.parent
SOURCES = (ROOT / "packages" / "stoker" / "src", ROOT / "packages" / "stoker-recipes" / "src")


def arguments(question: str) -> argparse.Namespace:
    """The options that all benchmarks share."""
    parser = argparse.ArgumentParser(description=question)
    parser.add_argument("--small", action="store_true", help="A quick run that writes no result file.")
    parser.add_argument("--rounds", type=int, default=None)
    return parser.parse_args()


def interleave(
    sides: Mapping[str, Callable[[], Any]],
    *,
    rounds: int,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each side, round by round; one more round goes first and is not counted. `before` runs ahead of each."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, run in sides.items():
            before()
            start = clock()
            kept = run()
            elapsed = clock() - start
            del kept
            if number:
                seconds[name].append(elapsed)
    return seconds


def spread(values: list[float]) -> dict[str, float]:
    """Median, quartiles and extremes."""
    quarters = statistics.quantiles(values, n=4) if len(values) > 1 else [values[0]] * 3
    numbers = {"median": statistics.median(values), "q1": quarters[0], "q3": quarters[2], "min": min(values), "max": max(values)}
    return {name: float(f"{number:.4g}") for name, number in numbers.items()}


def ratio(numerator: list[float], denominator: list[float]) -> dict[str, float]:
    """The ratio of two sides, pair by pair."""
    return spread([a / b for a, b in zip(numerator, denominator, strict=True)])


def save(name: str, question: str, answer: Mapping[str, Any], *, path: Path | None = None, show: bool = True) -> None:
    """Write a result file, by default that of the benchmark, and show it."""
    record = {
        "question": question,
        "command": f"python -m {_module()} {' '.join(sys.argv[1:])}".strip(),
        "commit": _git("rev-parse", "--short", "HEAD") + ("+changes" if _git("status", "--porcelain", "packages") else ""),
        "machine": _machine(),
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
        **answer,
    }
    path = RESULTS / f"{name}.json" if path is None else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1) + "\n")
    if show:
        print(json.dumps(record, indent=1))


def _git(*words: str) -> str:
    if shutil.which("git") is None:
        return "?"
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def _machine() -> dict[str, Any]:
    import os

    import numpy
    import pyarrow

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")),
        "?",
    )
    memory = next(int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e6),
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "pyarrow": pyarrow.__version__,
    }


def _module() -> str:
    """Return the benchmark that runs; a result may have another name."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec is not None else "?"

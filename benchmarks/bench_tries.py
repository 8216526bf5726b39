"""Does a fix give what the diagnosis predicts? Programs with a known cause are diagnosed, and what is proposed is tried.

Each program of `benchmarks.verdicts.table` that needs no GPU is diagnosed as a user would do it, and each proposal with a
prediction is tried in fresh processes with the same seed. The error of a prediction is |predicted / tried - 1|. `--only` runs some
programs and leaves what is known of the others, so that quiet minutes of a shared machine can be used one by one.

A first pass over five programs changed what is predicted: on a CPU, larger batches (4 tries, median error 11 %) and workers that
share the cores of the training (3 tries, 62 %) are tried without a prediction since, and a gathered batch has a cost of its own
(4 tries, 17 %). The results are of the pass after that; a program without a verdict has no tries and may be run again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import record
from benchmarks.verdicts.measure import PROGRAMS as FOLDER
from benchmarks.verdicts.table import PROGRAMS, Program
from stoker.diagnose.conclude import conclude
from stoker.diagnose.scripts import measure_script
from stoker.diagnose.tries import FIXES
from stoker.diagnose.trying import try_next

QUESTION = "By how much does the speed-up of a fix differ from what `stoker diagnose` predicts?"
SMALL = ("data-mlp", "dispatch-mlp")
ASKED = {"median": 0.05, "p90": 0.10}
Row = dict[str, Any]


def try_program(program: Program, *, pace: float, seconds: float) -> Row:
    """Diagnose it, and try what has a prediction."""
    script = FOLDER / program.script
    with tempfile.TemporaryDirectory() as folder:
        before, kept = Path.cwd(), dict(os.environ)
        os.chdir(folder)
        os.environ.update(program.environment)
        try:
            finding = conclude(measure_script(script, program.words, quiet=True, pace=pace))
            steps = [step for step in finding.next if step.predicted is not None and step.name in FIXES]
            finding = try_next(msgspec.structs.replace(finding, next=steps), script, program.words, quiet=True, seconds=seconds)
        finally:
            os.chdir(before)
            os.environ.clear()
            os.environ.update(kept)
    tries = [
        {
            "fix": step.name,
            "predicted": round(step.predicted, 3),
            "tried": round(step.tried.speedup, 3),
            "low": round(step.tried.low, 3),
            "high": round(step.tried.high, 3),
            "losses": step.tried.losses,
            "error": round(abs(step.predicted / step.tried.speedup - 1), 3),
        }
        for step in finding.next
        if step.tried is not None and step.tried.error is None and step.predicted is not None
    ]
    failed = {step.name: step.tried.error for step in finding.next if step.tried is not None and step.tried.error is not None}
    return {
        "name": program.name,
        "verdict": finding.verdict,
        "why_none": finding.why if finding.verdict == "none" else None,
        "spread": round(finding.spread, 3),
        "tries": tries,
        "could_not_be_tried": failed,
    }


def score(rows: list[Row]) -> dict[str, Any]:
    """Errors of all predictions, and by fix."""
    tries = [one for row in rows for one in row["tries"]]
    by_fix = {name: [one["error"] for one in tries if one["fix"] == name] for name in sorted({one["fix"] for one in tries})}
    losses = [one["losses"] for one in tries]
    return {
        "asked": ASKED,
        "all": _summary([one["error"] for one in tries]),
        "by_fix": {name: _summary(errors) for name, errors in by_fix.items()},
        "losses": {kind: losses.count(kind) for kind in sorted(set(losses))},
        "within_interval": sum(one["low"] <= one["predicted"] <= one["high"] for one in tries),
    }


def _summary(errors: list[float]) -> dict[str, float]:
    if len(errors) < 2:
        return {"tries": len(errors), **({"median": errors[0], "p90": errors[0]} if errors else {})}
    p90 = statistics.quantiles(errors, n=10, method="inclusive")[-1]
    return {"tries": len(errors), "median": round(statistics.median(errors), 3), "p90": round(p90, 3)}


def _known() -> dict[str, Row]:
    path = record.RESULTS / "bench_tries.json"
    rows: list[Row] = json.loads(path.read_text())["programs"] if path.exists() else []
    return {row["name"]: row for row in rows}


def main() -> None:
    """Try the programs that were asked for."""
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="Two programs, no result file.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Programs whose names begin so; what is known of others stays.")
    parser.add_argument("--pace", type=float, default=1.0, help="Length of the stretches of a diagnosis, as a share of the usual.")
    parser.add_argument("--seconds", type=float, default=1.5, help="Length of the stretch of a try.")
    asked = parser.parse_args()
    names = SMALL if asked.small else tuple(asked.only or [""])
    rows = {} if asked.small else _known()
    for program in PROGRAMS:
        if program.device == "cpu" and program.kind != "sabotaged" and program.name.startswith(names):
            rows[program.name] = try_program(program, pace=asked.pace, seconds=asked.seconds)
            print(json.dumps(rows[program.name]), flush=True)
    ordered = [rows[program.name] for program in PROGRAMS if program.name in rows]
    answer = {"pace": asked.pace, "seconds": asked.seconds, **score(ordered), "programs": ordered}
    if asked.small:
        print(json.dumps(score(ordered), indent=1))
    else:
        record.save("bench_tries", QUESTION, answer)


if __name__ == "__main__":
    main()

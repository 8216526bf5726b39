"""Does a fix give what the diagnosis predicts? Programs with a known cause are diagnosed, and what is proposed is tried.

Each program of `benchmarks.verdicts.table` is diagnosed as a user would do it, and each proposal with a prediction, or with a range
of two ends, is tried in fresh processes with the same seed (with `--all`, each that can be). The error of a prediction is
|predicted / tried - 1|. A proposal of which only a range is given, or nothing, counts as not predicted. `--parallel` runs programs
side by side, each on two cores of its own, those of a GPU one after the other on cores of theirs; `--only` runs some, and leaves
what is known of the others. Programs come in the order of `FIRST`, those with most to predict first; `--minutes` may end it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import record
from benchmarks.verdicts.lanes import make_lanes, side_by_side, usable_cores
from benchmarks.verdicts.measure import ROOT
from benchmarks.verdicts.needs import can_run, data_for
from benchmarks.verdicts.table import PROGRAMS, Program
from stoker.diagnose.api import measure_script
from stoker.diagnose.finding import Finding
from stoker.diagnose.fixes import FIXES
from stoker.diagnose.measurements import Advice
from stoker.diagnose.trials import try_advice
from stoker.diagnose.verdict import conclude

QUESTION = "By how much does the speed-up of a fix differ from what `stoker diagnose` predicts?"
SMALL = ("data-mlp", "dispatch-mlp")
FIRST = (
    "launch-mlp", "precision-transformer", "transfer-mlp", "sync-convolution", "launch-transformer", "precision-tabular",
    "data-", "optimizer-", "mixed-", "dispatch-", "oversubscribed-", "story-", "compute-", "memory-", "host-",
)  # fmt: skip
ASKED = {"median": 0.05, "p90": 0.10}
CLEAR = 1.10
"""A gain from which on a prediction is more than "about the same"."""
SAME_SPEED = 0.05
"""Of the logarithm of a ratio of steps."""
Row = dict[str, Any]


def try_program(program: Program, *, pace: float, seconds: float, limit: float, everything: bool, keep: Path | None) -> Row:
    """Diagnose it, and try what has a prediction; in a folder of its own, with its own variables."""
    begin = time.monotonic()
    script = program.path
    measured = measure_script(script, program.words, quiet=True, pace=pace)
    finding = conclude(measured)
    steps = [step for step in finding.next if step.name in FIXES and (everything or step.predicted_low is not None)]
    reported = [step for step in finding.next if step.name in FIXES and step not in steps]
    took = time.monotonic() - begin
    finding = msgspec.structs.replace(finding, next=steps)
    finding = try_advice(finding, script, program.words, quiet=True, seconds=seconds, at_most=limit - took - 8)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{program.name}.json").write_bytes(msgspec.json.encode(finding))
    return {**row_of(program, finding, reported), "seconds": round(time.monotonic() - begin, 1), "diagnosed": round(took, 1)}


def row_of(program: Program, finding: Finding, reported: Sequence[Advice] = ()) -> Row:
    """What is kept of a finding; `reported` was advised and not tried."""
    tried = [step for step in finding.next if step.tried is not None and step.tried.error is None]
    now = finding.measurements.loop.median if finding.measurements is not None else float("nan")
    return {
        "name": program.name,
        "device": program.device,
        "verdict": finding.verdict,
        "why_none": finding.why if finding.verdict == "none" else None,
        "spread": round(finding.spread, 3),
        "tries": [_try_of(step, now) for step in tried if step.predicted is not None],
        "not_predicted": [_try_of(step, now) for step in tried if step.predicted is None] + [_not_tried(step) for step in reported],
        "could_not_be_tried": {one.name: one.tried.error for one in finding.next if one.tried is not None and one.tried.error},
    }


def _not_tried(step: Advice) -> Row:
    ends = (("predicted", step.predicted), ("predicted_low", step.predicted_low), ("predicted_high", step.predicted_high))
    return {"fix": step.name} | {name: round(value, 3) for name, value in ends if value is not None}


def _try_of(step: Advice, step_seconds: float) -> Row:
    tried = step.tried
    if tried is None:
        return _not_tried(step)
    row = _not_tried(step) | {"tried": round(tried.speedup, 3), "low": round(tried.low, 3), "high": round(tried.high, 3)}
    if tried.step_seconds is not None:
        row |= {"step_ms": round(step_seconds * 1e3, 3), "step_ms_when_tried": round(tried.step_seconds * 1e3, 3)}
    row |= {"losses": tried.losses, "largest_difference": tried.largest_difference, "peak_bytes": tried.peak_bytes}
    if step.predicted is not None:
        row["error"] = round(abs(step.predicted / tried.speedup - 1), 3)
    if step.predicted_low is not None and step.predicted_high is not None:
        row["overlap"] = step.predicted_low <= tried.high and tried.low <= step.predicted_high
    return row


def score(rows: list[Row]) -> dict[str, Any]:
    """Errors of all predictions, by fix, and of those that are more than "about the same"."""
    tries = [one for row in rows for one in row.get("tries", [])]
    others = [one for row in rows for one in row.get("not_predicted", [])]
    by_fix = {name: [one["error"] for one in tries if one["fix"] == name] for name in sorted({one["fix"] for one in tries})}
    losses = [one["losses"] for one in tries]
    return {
        "asked": ASKED,
        "predicted": len(tries),
        "not_predicted": {name: sum(one["fix"] == name for one in others) for name in sorted({one["fix"] for one in others})},
        "all": _summary([one["error"] for one in tries]),
        "at_the_same_speed": _summary([one["error"] for one in tries if _same_speed(one)]),
        "clear_gains": _summary([one["error"] for one in tries if max(one["predicted"], one["tried"]) >= CLEAR]),
        "by_device": {name: _summary([one["error"] for row in rows if row.get("device") == name for one in row["tries"]])
                      for name in ("cpu", "cuda")},
        "by_fix": {name: _summary(errors) for name, errors in by_fix.items()},
        "losses": {kind: losses.count(kind) for kind in sorted(set(losses))},
        "intervals_overlap": sum(bool(one.get("overlap")) for one in tries),
        "ranges_overlap": sum(bool(one["overlap"]) for one in others if "overlap" in one),
        "ranges_tried": sum("overlap" in one for one in others),
    }  # fmt: skip


def _same_speed(one: Row) -> bool:
    """Whether the program as it is ran as fast when the fix was tried as when it was diagnosed; machines change their speed."""
    return "step_ms" in one and abs(math.log(one["step_ms_when_tried"] / one["step_ms"])) <= SAME_SPEED


def _summary(errors: list[float]) -> dict[str, float]:
    if len(errors) < 2:
        return {"tries": len(errors), **({"median": errors[0], "p90": errors[0]} if errors else {})}
    p90 = statistics.quantiles(errors, n=10, method="inclusive")[-1]
    return {"tries": len(errors), "median": round(statistics.median(errors), 3), "p90": round(p90, 3)}


def run_apart(program: Program, asked: argparse.Namespace, end: float, data: Path | None) -> Row:
    """One program in a process of its own, which inherits the cores of its lane; ended where it takes far too long.

    `data` is what programs of `others/` read.
    """
    failed = {"name": program.name, "device": program.device, "verdict": "error", "tries": [], "not_predicted": []}
    if time.monotonic() > end:
        return failed | {"verdict": "not run", "why_none": "no time was left"}
    words = ["--one", program.name, "--pace", str(asked.pace), "--seconds", str(asked.seconds), "--limit", str(asked.limit)]
    words += ["--all", asked.all] if asked.all else []
    words += ["--keep", str(asked.keep.resolve())] if asked.keep is not None else []
    variables = {
        **os.environ,
        **program.environment,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-m", "benchmarks.bench_tries", *words]
    with tempfile.TemporaryDirectory() as folder:
        if program.folder == "others" and data is not None:
            (Path(folder) / "data").symlink_to(data)
        try:
            done = subprocess.run(
                command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=2 * asked.limit + 60
            )
        except subprocess.TimeoutExpired:
            return failed | {"why_none": f"took more than {2 * asked.limit + 60:.0f} s"}
    if done.returncode or not done.stdout.strip():
        return failed | {"why_none": done.stderr.strip()[-600:]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _known(path: Path) -> dict[str, Row]:
    rows: list[Row] = json.loads(path.read_text())["programs"] if path.exists() else []
    return {row["name"]: row for row in rows}


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="Two programs, no result file.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Programs whose names begin so; what is known of others stays.")
    parser.add_argument("--all", choices=("cpu", "cuda", "both"), help="Try what has no prediction, too, on this device.")
    parser.add_argument(
        "--pace", type=float, default=1.0, help="Length of the measurement windows of a diagnosis, as a share of the usual."
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="Length of the measurement window of a trial.")
    parser.add_argument("--limit", type=float, default=90.0, help="Seconds of a program, after which no try begins.")
    parser.add_argument("--minutes", type=float, default=600.0, help="After which no program begins.")
    parser.add_argument("--parallel", type=int, default=0, metavar="N", help="N programs at a time, each on two cores of its own.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Where the results go, instead of benchmarks/results.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="Keep findings: one JSON file per program.")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    return parser.parse_args()


def _chosen(names: Sequence[str]) -> list[Program]:
    found = [one for one in PROGRAMS if one.kind != "sabotaged" and one.name.startswith(tuple(names)) and can_run(one)]
    return sorted(found, key=lambda one: next((n for n, start in enumerate(FIRST) if one.name.startswith(start)), len(FIRST)))


def _answer(rows: dict[str, Row], asked: argparse.Namespace) -> dict[str, Any]:
    ordered = [rows[program.name] for program in PROGRAMS if program.name in rows]
    return {"pace": asked.pace, "seconds": asked.seconds, **score(ordered), "programs": ordered}


def main() -> None:
    """Try the programs that were asked for."""
    asked = _asked()
    options = {"pace": asked.pace, "seconds": asked.seconds, "limit": asked.limit, "keep": asked.keep}
    if asked.one is not None:
        program = next(one for one in PROGRAMS if one.name == asked.one)
        print(json.dumps(try_program(program, everything=asked.all in (program.device, "both"), **options)), flush=True)
        return
    end = time.monotonic() + 60 * asked.minutes
    path = asked.out or record.RESULTS / "bench_tries.json"
    rows = {} if asked.small else _known(path)
    chosen = _chosen(SMALL if asked.small else asked.only or [""])
    lanes = make_lanes(asked.parallel, usable_cores(), gpu=any(one.device == "cuda" for one in chosen))
    try:
        with data_for(chosen) as data:
            for program, row in side_by_side(lanes, chosen, partial(run_apart, asked=asked, end=end, data=data)):
                if row["verdict"] == "not run":
                    continue
                rows[program.name] = row
                print(json.dumps(row), flush=True)
                if not asked.small:
                    record.save("bench_tries", QUESTION, _answer(rows, asked), path=path, show=False)
    except KeyboardInterrupt:
        print("interrupted: what was found so far is kept")
    print(json.dumps(score(list(rows.values())), indent=1))


if __name__ == "__main__":
    main()

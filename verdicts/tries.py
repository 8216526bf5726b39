"""Does a fix give what the diagnosis predicts? Programs with a known cause are diagnosed, and what is advised is tried.

Each program of `verdicts.table` is diagnosed as a user would do it, and each fix that is advised is tried, as by `--try`: in
fresh processes with the same seed. What counts:

- tried: an advised fix whose trial gave a speed-up. Advice that is no fix of the registry (`host`: move a line) cannot be tried. What
  could not be tried, or varied too much for one number, is listed with the reason and counts nowhere.
- predicted: a tried fix whose prediction is one number. A range, a bound or nothing counts as not predicted.
- share: predicted of tried. error: |predicted / tried - 1|.

`DEVELOPED` are programs whose trials were seen when the rule was set; `unseen` sums up the others. `--parallel` runs programs side by
side, each on two cores of its own, those of a GPU one after the other on cores of theirs; `--only` runs some, and leaves what is known
of the others; `--missing` runs those that have no row yet, or no time for all trials, so that a run can be continued. Programs are in
an order that spreads over devices and causes, wherever `--minutes` ends it: no trial begins later, and a row is written as soon as it
is known. `--again` judges kept findings by the rule of now: what was measured and what was tried stay.
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

from stoker.diagnose import wording
from stoker.diagnose.api import diagnose_script
from stoker.diagnose.experiments.table import FIXES
from stoker.diagnose.finding import Finding
from stoker.diagnose.measurements import Advice
from stoker.diagnose.rule import conclude
from stoker.diagnose.trials import try_advice
from verdicts.lanes import make_lanes, side_by_side, usable_cores
from verdicts.measure import ROOT
from verdicts.needs import can_run, data_for
from verdicts.table import PROGRAMS, Program

QUESTION = "By how much does the speed-up of a fix differ from what `stoker diagnose` predicts?"
SMALL = ("data-mlp", "dispatch-mlp")
WITHOUT_FIX = ("host", "sync", "straggler", "communication")
"""Causes that the user removes by moving lines: little can be tried for them, so their programs come later."""
LEAST_SECONDS = 70.0
"""Of a program: its diagnosis and a few trials with their baselines."""
ASKED = {"share": 0.60, "median": 0.04, "p90": 0.10}
DEVELOPED = (
    "host-mlp", "memory-mlp", "oversubscribed-tabular", "mixed-host-dispatch", "other-padded-text", "other-sketch-strokes",
    "other-experts", "other-closure-mlp", "other-gated-scaling", "other-norm-mlp", "everyday-periodic-log",
    "everyday-fresh-buffers", "data-mlp", "optimizer-transformer", "dispatch-gru", "mixed-data-compute", "story-series-attention",
    "other-augmented-tiles", "other-checkpoints", "other-online-ranker", "other-dense-autoencoder", "other-pendulum-policy",
    "everyday-restarted-workers", "everyday-queued-batches", "compute-mlp", "compute-tabular", "data-gru", "data-tabular",
    "dispatch-columns", "dispatch-transformer", "memory-convolution", "memory-tabular", "memory-transformer", "mixed-data-memory",
    "optimizer-gru", "other-churn-frame", "other-running-auc", "other-short-epochs", "story-bars", "compute-gpu-mlp",
    "launch-transformer", "optimizer-gpu-transformer", "precision-tabular", "compute-transformer", "data-transformer",
    "dispatch-mlp", "everyday-doubles", "everyday-spectral-penalty", "everyday-wide-floats", "kernel-mlp", "launch-mlp",
    "optimizer-mlp", "optimizer-tabular", "oversubscribed-mlp", "oversubscribed-transformer", "precision-mlp", "transfer-mlp",
    "compute-convolution", "data-windows", "dispatch-tabular", "everyday-collated-tokens", "everyday-user-vectors",
    "other-byte-transformer", "other-click-factors", "other-dilated-forecast", "other-hand-gru", "other-npz-convnet",
    "other-parquet-rows", "other-skipgram-pairs", "other-wide-catalogue", "oversubscribed-convolution", "data-worker",
    "everyday-autocast-blocks", "everyday-table-regression", "host-transformer", "mixed-optimizer-compute", "mixed-optimizer-data",
)  # fmt: skip
"""All but the first twelve were held out first: docs/journal.md has what they showed then, and what was changed for it."""
CLEAR = 1.10
"""A gain from which on a prediction is more than "about the same"."""
SURE = 1.2
"""The ends of the interval of a trial that can tell whether a prediction is within ten per cent."""
SAME_SPEED = 0.05
"""Of the logarithm of a ratio of steps."""
Row = dict[str, Any]


def try_program(program: Program, *, pace: float, seconds: float, limit: float, keep: Path | None) -> Row:
    """Diagnose it, and try what is advised; in a folder of its own, with its own variables."""
    begin = time.monotonic()
    script = program.path
    finding = diagnose_script(script, program.words, quiet=True, pace=pace, with_compile=True)
    took = time.monotonic() - begin
    finding = try_advice(finding, script, program.words, quiet=True, seconds=seconds, at_most=limit - took - 8)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        (keep / f"{program.name}.json").write_bytes(msgspec.json.encode(finding))
    return {**row_of(program, finding), "seconds": round(time.monotonic() - begin, 1), "diagnosed": round(took, 1)}


def judged_again(finding: Finding) -> Finding:
    """A finding by the rule of now, with the trials of then; what is advised now and was not tried then is not in it."""
    if finding.measurements is None:
        return finding
    tried = {step.name: step.tried for step in finding.next if step.tried is not None}
    found = conclude(finding.measurements)
    steps = [msgspec.structs.replace(step, tried=tried[step.name]) for step in found.next if step.name in tried]
    return msgspec.structs.replace(found, next=steps)


def row_of(program: Program, finding: Finding) -> Row:
    """What is kept of a finding."""
    tries = [step for step in finding.next if step.name in FIXES and step.tried is not None]
    tried = [step for step in tries if step.tried is not None and step.tried.error is None]
    now = finding.measurements.loop.median if finding.measurements is not None else float("nan")
    return {
        "name": program.name,
        "device": program.device,
        "verdict": finding.verdict,
        "why_none": finding.why if finding.verdict == "none" else None,
        "spread": round(finding.spread, 3),
        "tries": [_try_of(step, now) for step in tried if step.predicted is not None],
        "not_predicted": [_try_of(step, now) for step in tried if step.predicted is None],
        "could_not_be_tried": {step.name: step.tried.error for step in tries if step.tried is not None and step.tried.error},
    }


def _try_of(step: Advice, step_seconds: float) -> Row:
    tried = step.tried
    assert tried is not None
    ends = (("predicted", step.predicted), ("predicted_low", step.predicted_low), ("predicted_high", step.predicted_high))
    row: Row = {"fix": step.name} | {name: round(value, 3) for name, value in ends if value is not None}
    row |= {"tried": round(tried.speedup, 3), "low": round(tried.low, 3), "high": round(tried.high, 3)}
    if tried.step_seconds is not None:
        row |= {"step_ms": round(step_seconds * 1e3, 3), "step_ms_when_tried": round(tried.step_seconds * 1e3, 3)}
    row |= {"losses": tried.losses, "largest_difference": tried.largest_difference, "peak_bytes": tried.peak_bytes}
    if step.predicted is not None:
        row["error"] = round(abs(step.predicted / tried.speedup - 1), 3)
    if step.predicted_low is not None and step.predicted_high is not None:
        row["overlap"] = step.predicted_low <= tried.high and tried.low <= step.predicted_high
    return row


def score(rows: list[Row]) -> dict[str, Any]:
    """How much of what was tried is predicted, and with which errors: of all, by device, by fix, and of unseen programs."""
    pairs = [(row, one) for row in rows for one in (*row.get("tries", []), *row.get("not_predicted", []))]
    tried, ranges = [one for _, one in pairs], [one for _, one in pairs if "overlap" in one and "error" not in one]
    failed = [name for row in rows for name in row.get("could_not_be_tried", {})]
    losses = [one["losses"] for one in tried if "error" in one]
    return {
        "asked": ASKED,
        "all": _summary(tried),
        "unseen": _summary([one for row, one in pairs if row["name"] not in DEVELOPED]),
        "developed": _summary([one for row, one in pairs if row["name"] in DEVELOPED]),
        "sure_trials": _summary([one for one in tried if one["high"] <= SURE * one["low"]]),
        "at_the_same_speed": _summary([one for one in tried if _same_speed(one)]),
        "clear_gains": _summary([one for one in tried if max(one.get("predicted", 0.0), one["tried"]) >= CLEAR]),
        "by_device": {name: _summary([one for row, one in pairs if row["device"] == name]) for name in ("cpu", "cuda")},
        "by_fix": {name: _summary([one for one in tried if one["fix"] == name]) for name in sorted({one["fix"] for one in tried})},
        "advised_and_slower": sorted(f"{row['name']}: {one['fix']} {one['tried']}" for row, one in pairs if one["high"] < 1),
        "could_not_be_tried": {name: failed.count(name) for name in sorted(set(failed))},
        "losses": {kind: losses.count(kind) for kind in sorted(set(losses))},
        "intervals_overlap": sum(bool(one.get("overlap")) for one in tried if "error" in one),
        "ranges_overlap": sum(bool(one["overlap"]) for one in ranges),
        "ranges_tried": len(ranges),
    }


def _same_speed(one: Row) -> bool:
    """Whether the program as it is ran as fast when the fix was tried as when it was diagnosed; machines change their speed."""
    return "step_ms" in one and abs(math.log(one["step_ms_when_tried"] / one["step_ms"])) <= SAME_SPEED


def _summary(tried: Sequence[Row]) -> dict[str, float]:
    """Of some trials: how many have a predicted number, and the errors of these."""
    errors = [one["error"] for one in tried if "error" in one]
    found: dict[str, float] = {"tried": len(tried), "predicted": len(errors)}
    if tried:
        found["share"] = round(len(errors) / len(tried), 3)
    if errors:
        p90 = statistics.quantiles(errors, n=10, method="inclusive")[-1] if len(errors) > 1 else errors[0]
        found |= {"median": round(statistics.median(errors), 3), "p90": round(p90, 3)}
    return found


def run_apart(program: Program, asked: argparse.Namespace, end: float, data: Path | None) -> Row:
    """One program in a process of its own, which inherits the cores of its lane; ended where it takes far too long.

    `data` is what programs of `others/` read.
    """
    failed = {"name": program.name, "device": program.device, "verdict": "error", "tries": [], "not_predicted": []}
    if time.monotonic() + LEAST_SECONDS > end:
        return failed | {"verdict": "not run", "why_none": "no time was left"}
    limit = min(asked.limit, end - time.monotonic())
    words = ["--one", program.name, "--pace", str(asked.pace), "--seconds", str(asked.seconds), "--limit", str(limit)]
    words += ["--keep", str(asked.keep.resolve())] if asked.keep is not None else []
    variables = {
        **os.environ,
        **program.environment,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
    }
    command = [sys.executable, "-m", "verdicts.tries", *words]
    with tempfile.TemporaryDirectory() as folder:
        if program.folder == "others" and data is not None:
            (Path(folder) / "data").symlink_to(data)
        try:
            done = subprocess.run(
                command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=2 * limit + 60
            )
        except subprocess.TimeoutExpired:
            return failed | {"why_none": f"took more than {2 * limit + 60:.0f} s"}
    if done.returncode or not done.stdout.strip():
        return failed | {"why_none": done.stderr.strip()[-600:]}
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def _known(path: Path) -> dict[str, Row]:
    rows: list[Row] = json.loads(path.read_text())["programs"] if path.exists() else []
    return {row["name"]: row for row in rows}


def _is_whole(row: Row) -> bool:
    """Whether the program ran, and there was time for all of its trials."""
    return row["verdict"] != "error" and wording.TRIAL["no_time"] not in row.get("could_not_be_tried", {}).values()


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="Two programs, no result file.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Programs whose names begin so; what is known of others stays.")
    parser.add_argument("--missing", action="store_true", help="Only programs of which the results do not have all trials yet.")
    parser.add_argument(
        "--again", type=Path, nargs="+", metavar="FOLDER", help="Judge findings that were kept there; runs nothing."
    )
    parser.add_argument(
        "--pace", type=float, default=1.0, help="Length of the measurement windows of a diagnosis, as a share of the usual."
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="In which rounds of a trial start.")
    parser.add_argument("--limit", type=float, default=90.0, help="Seconds of a program, after which no try begins.")
    parser.add_argument("--minutes", type=float, default=600.0, help="After which no program and no trial begins.")
    parser.add_argument("--parallel", type=int, default=0, metavar="N", help="N programs at a time, each on two cores of its own.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Where the results go, instead of benchmarks/results.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="Keep findings: one JSON file per program.")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    return parser.parse_args()


def _chosen(names: Sequence[str], known: Sequence[str] = ()) -> list[Program]:
    """Programs whose names begin so, except those that are known; in turn one of each device and cause."""
    begin = tuple(names)
    found = [
        program for program in PROGRAMS if program.kind != "sabotaged" and program.processes == 1 and program.name.startswith(begin)
    ]
    place: dict[str, int] = {}
    seen: dict[tuple[str, str], int] = {}
    for one in found:
        cause = (one.device, one.verdict)
        place[one.name] = seen.get(cause, 0) + len(WITHOUT_FIX) * (one.verdict in WITHOUT_FIX)
        seen[cause] = seen.get(cause, 0) + 1
    return sorted((one for one in found if one.name not in known and can_run(one)), key=lambda one: place[one.name])


def _answer(rows: dict[str, Row], asked: argparse.Namespace) -> dict[str, Any]:
    ordered = [rows[program.name] for program in PROGRAMS if program.name in rows]
    return {"pace": asked.pace, "seconds": asked.seconds, **score(ordered), "programs": ordered}


def _judge_again(asked: argparse.Namespace) -> None:
    rows = {}
    for program in PROGRAMS:
        for path in [folder / f"{program.name}.json" for folder in asked.again]:
            if path.exists():
                rows[program.name] = row_of(program, judged_again(read_finding(path)))
    if asked.out is not None:
        record.save("bench_tries", QUESTION, _answer(rows, asked), path=asked.out, show=False)
    print(json.dumps(score(list(rows.values())), indent=1))


def read_finding(path: Path) -> Finding:
    """A finding that was kept. Speed-ups of failed trials and some losses are NaN, which JSON has no word for."""
    given = json.loads(path.read_bytes())
    for step in given["next"]:
        if step["tried"] is not None:
            step["tried"] |= {name: math.nan for name in ("speedup", "low", "high") if step["tried"][name] is None}
    if given["measurements"] is not None:
        given["measurements"]["losses"] = [math.nan if loss is None else loss for loss in given["measurements"]["losses"]]
    return msgspec.convert(given, type=Finding)


def main() -> None:
    """Try the programs that were asked for."""
    asked = _asked()
    options = {"pace": asked.pace, "seconds": asked.seconds, "limit": asked.limit, "keep": asked.keep}
    if asked.one is not None:
        program = next(program for program in PROGRAMS if program.name == asked.one)
        print(json.dumps(try_program(program, **options)), flush=True)
        return
    if asked.again is not None:
        _judge_again(asked)
        return
    end = time.monotonic() + 60 * asked.minutes
    path = asked.out or record.RESULTS / "bench_tries.json"
    rows = {} if asked.small else _known(path)
    chosen = _chosen(
        SMALL if asked.small else asked.only or [""], [name for name, row in rows.items() if asked.missing and _is_whole(row)]
    )
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

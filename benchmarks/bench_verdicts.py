"""How often is `stoker diagnose` right? Programs with a known cause, put there on purpose, are diagnosed as a user would do it.

Each program of `benchmarks.verdicts.table` is run unchanged by the command. Right is the verdict that was put in (top-1), or the
second cause being it (top-2); of programs with two causes the second must be named as well. Sabotaged runs (five steps only,
noisy neighbours) must end without a verdict, all others with one. `--shares` measures, without the tool, how much of a step each
cause is. On a machine that others use, `--processor-time` gives the tool another clock, where a program's causes allow that.
`--only` runs some programs and leaves what is known of the others; without a GPU, those that need one are left out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from benchmarks import record
from benchmarks.verdicts.measure import PROGRAMS as FOLDER
from benchmarks.verdicts.measure import step_seconds
from benchmarks.verdicts.neighbour import noisy_neighbours
from benchmarks.verdicts.table import PROGRAMS, Program

QUESTION = "Of programs with one known cause, how many does `stoker diagnose` name right?"
SMALL = ("data-mlp", "host-mlp", "optimizer-tabular", "compute-mlp", "memory-mlp", "dispatch-mlp", "few-steps-data-mlp")
NEIGHBOURS_A_CORE = 2
COMMAND = [sys.executable, "-c", "from stoker.cli.main import main; main()", "diagnose", "--json", "--quiet"]
COMMON = ("name", "kind", "device", "put_in_second")
Row = dict[str, Any]


def diagnose(program: Program, *, processor_time: bool = False) -> Row:
    """What the command says of a program, in a folder of its own, and how long it took."""
    variables = {**os.environ, **program.environment}
    clock = "processor" if processor_time and not waits(program) else "wall"
    if clock == "processor":
        variables["PYTHONPATH"] = str(FOLDER.parent / "processor_time")
    cores = len(os.sched_getaffinity(0))
    neighbours = noisy_neighbours(NEIGHBOURS_A_CORE * cores) if program.neighbour else nullcontext()
    with tempfile.TemporaryDirectory() as folder, neighbours:
        command = [*COMMAND, str(FOLDER / program.script), "--", *program.words]
        start = time.perf_counter()
        done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - start
    row: Row = {"name": program.name, "kind": program.kind, "device": program.device, "put_in": program.verdict}
    row |= {"put_in_second": program.second, "seconds": round(seconds, 1), "clock": clock}
    if not done.stdout.strip():
        return row | {"verdict": "error", "second": None, "why": done.stderr.strip()[-300:]}
    finding = json.loads(done.stdout)
    shares = {cause["verdict"]: round(cause["share"], 3) for cause in finding["causes"][:3]}
    return row | {
        "verdict": finding["verdict"],
        "second": finding["second"],
        "shares": shares,
        "confidence": finding["confidence"],
        "spread": None if finding["spread"] is None else round(finding["spread"], 3),
        "place": finding["place"],
        "why": finding["why"],
    }


def waits(program: Program) -> bool:
    """Whether the cause is only to be seen by the wall's clock: workers, a crowd of threads, neighbours, a GPU."""
    crowded = program.neighbour or program.verdict == "oversubscribed" or "--workers" in program.words
    return crowded or "--threads" in program.words or program.device != "cpu"


def measure_share(program: Program) -> Row:
    """How much of a step is gone without the cause, by the wall and by the processor; and without the second."""
    sides = {"with": program.words, "without": program.clean_words}
    if program.second_clean is not None:
        sides["without_second"] = program.second_clean_words
    times = {side: step_seconds(program.script, words, environment=program.environment) for side, words in sides.items()}
    row: Row = {"step_ms": round(times["with"]["wall"] * 1e3, 3)}
    for side, kind in (("without", "share"), ("without_second", "second_share")):
        if side in times:
            row[f"put_in_{kind}"] = round(1 - times[side]["wall"] / times["with"]["wall"], 3)
            row[f"put_in_{kind}_cpu"] = round(1 - times[side]["cpu"] / times["with"]["cpu"], 3)
    return row


def is_right(row: Row) -> bool:
    """The verdict is what was put in."""
    return bool(row["verdict"] == row["put_in"])


def is_among_two(row: Row) -> bool:
    """What was put in is the first or the second cause."""
    return row["put_in"] in (row["verdict"], row["second"])


def score(rows: Sequence[Row]) -> dict[str, Any]:
    """Right and wrong, by kind of program; `no_verdict` counts runs that ended without one, `wrong` those with another one."""
    table: dict[str, Any] = {}
    for kind in ("single", "mixed", "story", "sabotaged"):
        some = [row for row in rows if row["kind"] == kind and "verdict" in row]
        if not some:
            continue
        table[kind] = {
            "programs": len(some),
            "top_1": sum(is_right(row) for row in some),
            "top_2": sum(is_among_two(row) for row in some),
            "no_verdict": sum(row["verdict"] == "none" for row in some),
            "wrong": sum(not is_right(row) and row["verdict"] != "none" for row in some),
        }
        if kind == "mixed":
            table[kind]["second_right"] = sum(is_right(row) and row["second"] == row["put_in_second"] for row in some)
    confused = Counter(
        f"{row['put_in']} called {row['verdict']}"
        for row in rows
        if "verdict" in row and not is_right(row) and row["verdict"] != "none"
    )
    return {"by_kind": table, "confused": dict(confused)}


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A few programs, no result file.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Programs whose names begin so; what is known of others stays.")
    parser.add_argument("--shares", action="store_true", help="Measure how much of a step each cause is, instead of diagnosing.")
    parser.add_argument("--processor-time", action="store_true", help="For a busy machine: the tool counts processor time.")
    return parser.parse_args()


def _known() -> dict[str, Row]:
    path = record.RESULTS / "bench_verdicts.json"
    rows: list[Row] = json.loads(Path(path).read_text())["programs"] if path.exists() else []
    return {row["name"]: row for row in rows}


def main() -> None:
    """Diagnose the programs that were asked for."""
    import torch

    asked = _asked()
    names = SMALL if asked.small else tuple(asked.only or [""])
    devices = {"cpu", "cuda"} if torch.cuda.is_available() else {"cpu"}
    chosen = [one for one in PROGRAMS if one.device in devices and one.name.startswith(names)]
    rows = {} if asked.small else _known()
    try:
        for program in chosen:
            if asked.shares and program.clean is None:
                continue
            row = measure_share(program) if asked.shares else diagnose(program, processor_time=asked.processor_time)
            rows[program.name] = {**rows.get(program.name, {"name": program.name, "kind": program.kind}), **row}
            mark = "share" if asked.shares else "right" if is_right(row) else "WRONG"
            print(f"{mark:6}{program.name:28}{json.dumps({key: row[key] for key in row if key not in COMMON})}", flush=True)
    except KeyboardInterrupt:
        print("interrupted: what was found so far is kept")
    ordered = [rows[program.name] for program in PROGRAMS if program.name in rows]
    answer = {**score(ordered), "not_run": [one.name for one in PROGRAMS if one.name not in rows], "programs": ordered}
    if asked.small:
        print(json.dumps(answer["by_kind"], indent=1))
    else:
        record.save("bench_verdicts", QUESTION, answer)


if __name__ == "__main__":
    main()

"""How often is `stoker diagnose` right? Programs with a known cause, put there on purpose, are diagnosed as a user would do it.

Each program of `verdicts.table` is run unchanged by the command. Right is the verdict that was put in (top-1), or the
second cause being it (top-2); of programs with two causes the second must be named as well. Sabotaged runs (five steps only,
noisy neighbours) must end without a verdict, all others with one. `--ablation` measures, without the tool, how much of a step is
gone with each program's fix: what was put in must be worth at least `RULE.waste_first` of it. On a machine that others use,
`--processor-time` gives the tool another clock, where a program's causes allow that. `--only` runs some programs and leaves what is
known of the others; without a GPU, those that need one are left out, and so are those of a package that is not installed.
`--parallel` runs programs side by side, each on two cores of its own, the longest first; results are written as they come. `--until`
starts nothing that would end later, `--missing` continues such a run, and `--merge` adds result files of other machines. `--keep`
keeps what was measured, of which `--replay` makes the verdicts again, without running anything. Held-out programs (kind `other`)
were written without knowing the rule.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from benchmarks import record

from stoker.diagnose.measurements import Measurements
from stoker.diagnose.rule import conclude
from stoker.diagnose.thresholds import RULE
from verdicts.ablations import accepted_causes
from verdicts.lanes import Deadline, make_lanes, side_by_side, usable_cores
from verdicts.measure import ablate
from verdicts.needs import can_run, data_for
from verdicts.neighbour import noisy_neighbours
from verdicts.table import PROGRAMS, Program
from verdicts.table.program import FOLDERS

QUESTION = "Of programs with one known cause, how many does `stoker diagnose` name right?"
SMALL = ("data-mlp", "host-mlp", "optimizer-tabular", "compute-mlp", "memory-mlp", "dispatch-mlp", "few-steps-data-mlp")
NEIGHBOURS_A_CORE = 2
LIMIT_SECONDS = 160.0  # the limit of a diagnosis is 90 s from the first step on; a cold torch.compile takes a minute on two cores
USUAL_SECONDS, ABLATION_SECONDS = 25.0, 15.0
"""Of a diagnosis and of an ablation on two quiet cores, where no earlier run says."""
OPTIONS = ["-m", "stoker", "diagnose", "--json", "--quiet"]
COMMON = ("name", "kind", "device", "put_in_second")
Row = dict[str, Any]


def diagnose(program: Program, *, processor_time: bool = False, keep: Path | None = None, data: Path | None = None) -> Row:
    """What the command says of a program, in a folder of its own, and how long it took; on the cores that this thread may use.

    `data` is what programs of `others/` read.
    """
    variables = {**os.environ, **program.environment}
    clock = "processor" if processor_time and not waits(program) else "wall"
    if clock == "processor":
        variables["PYTHONPATH"] = os.pathsep.join([str(FOLDERS / "processor_time"), variables.get("PYTHONPATH", "")])
    if program.device == "cuda":
        variables["PYTHONPATH"] = os.pathsep.join([str(FOLDERS / "gpu_turns"), variables.get("PYTHONPATH", "")])
    cores = len(os.sched_getaffinity(0))
    neighbours = noisy_neighbours(NEIGHBOURS_A_CORE * cores) if program.neighbour else nullcontext()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, neighbours:
        if data is not None:
            (Path(folder) / "data").symlink_to(data)
        command = [*_python(program), *OPTIONS, str(program.path), "--", *program.words]
        start = time.perf_counter()
        out, reported = _run(command, folder, variables)
        seconds = time.perf_counter() - start
    row = {**_row(program), "seconds": round(seconds, 1), "clock": clock, "cores": cores}
    if not out.strip():
        return row | {"verdict": "error", "second": None, "why": reported.strip()[-300:]}
    finding = json.loads(out)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        measured = finding["measurements"]
        measured["losses"] = [loss for loss in measured["losses"] if loss is not None]  # without the non-finite ones
        (keep / f"{program.name}.json").write_text(json.dumps(measured))
    return row | _not_tried(finding)


def _python(program: Program) -> list[str]:
    if program.processes == 1:
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={program.processes}"]


def _run(command: Sequence[str], folder: str, variables: dict[str, str]) -> tuple[str, str]:
    """What a command prints. After a time, it is ended with all that it has started."""
    process = subprocess.Popen(
        command, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        return process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        return "", f"took more than {LIMIT_SECONDS:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def replay(program: Program, folder: Path) -> Row | None:
    """What would be said today of what was measured then; None where nothing was kept."""
    path = folder / f"{program.name}.json"
    if not path.exists():
        return None
    finding = conclude(msgspec.json.decode(path.read_bytes(), type=Measurements, strict=False))
    return _row(program) | _not_tried(finding.as_dict())


def _row(program: Program) -> Row:
    row: Row = {"name": program.name, "kind": program.kind, "device": program.device, "put_in": program.verdict}
    if program.without or program.also:
        row["accepted"] = accepted_causes(program)
    return row | {"put_in_second": program.second}


def _not_tried(finding: dict[str, Any]) -> Row:
    place = finding["place"]
    return {
        "verdict": finding["verdict"],
        "second": finding["second"],
        "shares": {cause["verdict"]: round(cause["share"], 3) for cause in finding["causes"][:4]},
        "confidence": finding["confidence"],
        "now_ms": round(1e3 * statistics.median(finding["measurements"]["loop"]["seconds"]), 3),
        "measuring_seconds": round(finding["measurements"]["measuring_seconds"], 1),
        "advice": [
            [step["name"], step["predicted"], step["predicted_low"], step["predicted_high"]] for step in finding["next"][:4]
        ],
        "spread": None if finding["spread"] is None else round(finding["spread"], 3),
        "place": place and {**place, "file": _in_project(place["file"])},
        "why": _in_project(finding["why"]),
    }


def _in_project(text: str) -> str:
    """The text with paths of our scripts as they are in the project, on whatever machine it was made."""
    return re.sub(r"/[^\s(:]*?(?=verdicts/)", "", text)


def waits(program: Program) -> bool:
    """Whether the cause is only to be seen by the wall's clock: workers, a crowd of threads, neighbours, a GPU."""
    crowded = program.neighbour or program.verdict == "oversubscribed" or "--workers" in program.words or program.processes > 1
    crowded = crowded or program.folder == "others"  # whose arguments do not say
    return crowded or "--threads" in program.words or program.device != "cpu"


def cannot_say(program: Program) -> bool:
    """Whether processor time says nothing of a cause: threads that wait for each other count as busy, processes that sleep do not."""
    return program.verdict == "oversubscribed" or (program.folder != "others" and waits(program))


def contradicted(row: Row) -> bool:
    """Whether the ablation says that what was put in is hardly there: its fix gains next to nothing."""
    return "gain" in row and max(row["gain"], row["gain_cpu"]) < RULE.waste_first


def is_right(row: Row) -> bool:
    """The verdict is what was put in, or one that an ablation accepts."""
    return row["verdict"] in row.get("accepted", [row["put_in"]])


def is_among_two(row: Row) -> bool:
    """What was put in, or what an ablation accepts, is the first or the second cause."""
    return any(cause in (row["verdict"], row["second"]) for cause in row.get("accepted", [row["put_in"]]))


def score(rows: Sequence[Row]) -> dict[str, Any]:
    """Right and wrong, by kind of program; `no_verdict` counts runs that ended without one, `wrong` those with another one."""
    table: dict[str, Any] = {}
    for kind in ("single", "mixed", "story", "other", "everyday", "gpu", "apart", "sabotaged"):
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


def _ablate(program: Program, *, rounds: int, data: Path | None, processor_time: bool) -> Row:
    try:
        return ablate(program, data=data, rounds=rounds, processor_time=processor_time)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return {"ablation_error": str(error)[-300:]}


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--small", action="store_true", help="A few programs, no result file.")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Programs whose names begin so; what is known of others stays.")
    parser.add_argument("--ablation", action="store_true", help="Measure what each program's fix gains, instead of diagnosing.")
    parser.add_argument("--rounds", type=int, default=1, help="Of an ablation.")
    parser.add_argument("--processor-time", action="store_true", help="For a busy machine: the tool counts processor time.")
    parser.add_argument("--parallel", type=int, default=0, metavar="N", help="N programs at a time, each on two cores of its own.")
    parser.add_argument("--until", type=float, metavar="SECONDS", help="Start no program that would end later than this from now.")
    parser.add_argument("--missing", action="store_true", help="Only programs without an answer in the result file.")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="Only programs of this device.")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="Run nothing: take the rows of these result files.")
    parser.add_argument("--commit", default="", help="Of merged files that do not say; of the rule, in a replay.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Where the results go, instead of benchmarks/results.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="Keep what was measured: one JSON file per program.")
    parser.add_argument(
        "--replay", type=Path, metavar="FOLDER", help="Run nothing: verdicts of what was kept there; written with --out alone."
    )
    return parser.parse_args()


def merged(rows: dict[str, Row], files: Sequence[Path], *, commit: str = "") -> dict[str, Row]:
    """Rows with those of other result files, the last one winning key by key; `of` says where a verdict comes from."""
    rows = dict(rows)
    for path in files:
        record_of = json.loads(path.read_text())
        machine = record_of["machine"]
        of = f"measured {record_of['when']} on {machine['cpu']} ({machine['cores']} cores), commit {record_of['commit'] or commit}"
        for row in record_of["programs"]:
            name = row["name"]
            rows[name] = {**rows.get(name, {}), **json.loads(_in_project(json.dumps(row)))}
            if "verdict" in row and "of" not in row:  # else it was merged into that file before
                rows[name]["of"] = of
            if "gain" in row:
                rows[name].pop("ablation_error", None)
                if "gain_of" not in row:
                    rows[name]["gain_of"] = of
    return rows


def judged_again(rows: dict[str, Row], again: dict[str, Row], *, commit: str) -> dict[str, Row]:
    """Rows with the verdicts of a replay; only of programs that have a row."""
    rule = f"; verdict by the rule of commit {commit}"
    found = dict(rows)
    for name, row in again.items():
        if name in rows:
            found[name] = {**rows[name], **row, "of": rows[name].get("of", "").partition("; verdict by")[0] + rule}
    return found


def merge_into(path: Path, files: Sequence[Path], *, commit: str = "") -> dict[str, Row]:
    """Write the rows of other result files to one; returns all its rows."""
    rows = merged(_known(path), files, commit=commit)
    _keep(path, rows)
    return rows


def _keep(path: Path, rows: dict[str, Row]) -> None:
    """Write merged rows to a result file; what else it has stays, as its machine and command."""
    before = json.loads(path.read_text()) if path.exists() else {}
    answer = _answer(rows)
    record.save("bench_verdicts", QUESTION, answer, path=path, show=False)
    if before:
        path.write_text(json.dumps({key: answer.get(key, value) for key, value in before.items()}, indent=1) + "\n")


def _known(path: Path) -> dict[str, Row]:
    rows: list[Row] = json.loads(path.read_text())["programs"] if path.exists() else []
    return {row["name"]: row for row in rows}


def _answer(rows: dict[str, Row]) -> dict[str, Any]:
    ordered = [rows[program.name] for program in PROGRAMS if program.name in rows]
    not_run = [program.name for program in PROGRAMS if "verdict" not in rows.get(program.name, {})]
    gains = sorted(row["gain"] for row in ordered if "gain" in row)
    ablation = {
        "programs": len(gains),
        "median_gain": statistics.median(gains) if gains else None,
        "contradicted": [row["name"] for row in ordered if contradicted(row)],
    }
    return {**score(ordered), "ablation": ablation, "not_run": not_run, "programs": ordered}


def _show(row: Row, progress: str = "") -> None:
    mark = "gain" if "verdict" not in row else "right" if is_right(row) else "none" if row["verdict"] == "none" else "WRONG"
    print(f"{progress}{mark:6}{row['name']:30}{json.dumps({key: row[key] for key in row if key not in COMMON})}", flush=True)


def _deadline(asked: argparse.Namespace) -> Deadline:
    """What earlier runs took, and the end of this one."""
    known = _known(record.RESULTS / "bench_verdicts.json") | _known(record.RESULTS / "gpu_verdicts.json")
    seconds = {} if asked.ablation else {name: row["seconds"] for name, row in known.items() if "seconds" in row}
    end = float("inf") if asked.until is None else time.monotonic() + asked.until
    return Deadline(seconds=seconds, usual=ABLATION_SECONDS if asked.ablation else USUAL_SECONDS, end=end)


def _choose(asked: argparse.Namespace, rows: dict[str, Row]) -> list[Program]:
    """The programs that were asked for and can run here."""
    names = SMALL if asked.small else tuple(asked.only or [""])
    chosen = [program for program in PROGRAMS if program.name.startswith(names) and asked.device in (None, program.device)]
    if asked.missing:
        key = "gain" if asked.ablation else "verdict"
        chosen = [one for one in chosen if key not in rows.get(one.name, {})]
    if asked.ablation:
        # In processor time nothing can be said where the cause is that processes or threads wait for each other.
        chosen = [one for one in chosen if one.has_fix and not (asked.processor_time and cannot_say(one))]
    return [one for one in chosen if can_run(one)]


def main() -> None:
    """Diagnose the programs that were asked for."""
    asked = _asked()
    path = asked.out or record.RESULTS / "bench_verdicts.json"
    rows = {} if asked.small else _known(path)
    if asked.replay is not None:
        names = tuple(asked.only or [""])
        found = (replay(program, asked.replay) for program in PROGRAMS if program.name.startswith(names))
        again = {row["name"]: row for row in found if row is not None}
        for row in again.values():
            _show(row)
        print(json.dumps(score(list(again.values())), indent=1))
        if asked.out is not None:
            _keep(path, judged_again(rows, again, commit=asked.commit))
        return
    if asked.merge:
        print(json.dumps(_answer(merge_into(path, asked.merge, commit=asked.commit))["by_kind"], indent=1))
        return
    deadline = _deadline(asked)
    chosen = deadline.longest_first(_choose(asked, rows))
    # One program of the GPU starts while another one is measured (gpu_turns/); an ablation has no turns.
    lanes_of_gpu = any(one.device == "cuda" for one in chosen) * (1 if asked.ablation else 2)
    lanes = make_lanes(asked.parallel, usable_cores(), gpu=lanes_of_gpu)
    start, left = time.monotonic(), {one.name for one in chosen}
    try:
        with data_for(chosen) as data:
            of_tool = partial(diagnose, processor_time=asked.processor_time, keep=asked.keep, data=data)
            of_fix = partial(_ablate, rounds=asked.rounds, data=data, processor_time=asked.processor_time)
            run = of_fix if asked.ablation else of_tool
            for program, row in side_by_side(lanes, chosen, run, may_start=deadline.allows):
                left.discard(program.name)
                rows[program.name] = {**rows.get(program.name, {"name": program.name, "kind": program.kind}), **row}
                progress = f"{len(chosen) - len(left):3}/{len(chosen)} {time.monotonic() - start:4.0f} s  "
                _show({"name": program.name, **row}, progress)
                if not asked.small:
                    record.save("bench_verdicts", QUESTION, _answer(rows), path=path, show=False)
    except KeyboardInterrupt:
        print("interrupted: what was found so far is kept")
    print(json.dumps(_answer(rows)["by_kind"], indent=1))
    if left:
        print(f"no time for {len(left)} programs (--missing runs them): {' '.join(sorted(left))}")


if __name__ == "__main__":
    main()

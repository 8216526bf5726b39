"""Which tool names the bottleneck? `stoker diagnose`, TraceML, gpuprof and a rule on a `torch.profiler` profile, on the same programs.

Each tool is used as its documentation shows (`verdicts/tools`, `benchmarks/before/profiler_verdict.py`) and runs a program
for the same number of seconds. `CAUSES` in `verdicts/tools` maps what it says to causes. `right` counts a program whose cause is in
the group that the tool names first, `exact` one whose cause it names first by itself, `top_2` one whose cause is in the first two
groups. Where an ablation accepts several causes, each of them counts. TraceML and gpuprof are not installed with Stoker: run this
in an environment that has them and torch (dependency group `verdict-tools`). Each tool runs alone, in a process of its own that has
torch imported already. Verdicts of Stoker are those of `bench_verdicts.json` and `gpu_verdicts.json`. Programs come cause by cause
in turn, so that a run that `--until` ends early has some of each; `--missing` continues it, those with the fewest missing answers
first, and asks again where a tool ended with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import record

from verdicts.ablations import accepted_causes
from verdicts.forked import Forker
from verdicts.lanes import Deadline, make_lanes, side_by_side, usable_cores
from verdicts.measure import PERIODS, ROOT
from verdicts.needs import can_run, data_for
from verdicts.table import PROGRAMS, Program
from verdicts.tools import causes_of

QUESTION = "Of programs with a known cause, how many does each tool name right?"
MODULES = {
    "traceml": "verdicts.tools.traceml",
    "gpuprof": "verdicts.tools.gpuprof",
    "profiler": "benchmarks.before.profiler_verdict",
}
SECONDS = 4.0
FEWEST_STEPS = 25
"""TraceML is sure from 20 steps on, gpuprof compares steps from 20 on, and the profile ends after 40."""
LIMIT_SECONDS = 60.0
ONE_TOOL_SECONDS = 9.0  # of one tool and one program: `SECONDS` of training and its summary
IMPORTS = ("traceml_ai.aggregator.trace_aggregator", "traceml_ai.launcher.cli", "traceml_ai.runtime.executor", "gpuprof.insights")
STOKER = ("bench_verdicts.json", "gpu_verdicts.json")
Row = dict[str, Any]


def ask(program: Program, *, tools: Mapping[str, Sequence[str]], seconds: float, data: Path | None) -> Row:
    """What the tools that are named for a program say of it."""
    hidden = {"CUDA_VISIBLE_DEVICES": ""} if program.device == "cpu" else {}  # tools measure by a GPU's clock where there is one
    forker = Forker.of_thread(imports=IMPORTS, environment=hidden)
    return {tool: ask_one(tool, program, forker=forker, seconds=seconds, data=data) for tool in tools[program.name]}


def ask_one(tool: str, program: Program, *, forker: Forker, seconds: float, data: Path | None) -> Row:
    """What one tool says, in a fresh process and a folder of its own; after a time it is ended with all that it has started."""
    fewest = PERIODS if program.kind == "everyday" else FEWEST_STEPS
    if program.processes > 1:  # which must stop at the same step
        seconds, fewest = 0.0, PERIODS
    arguments = [seconds, fewest, str(program.path), program.words, program.processes]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        if data is not None:
            (Path(folder) / "data").symlink_to(data)
        if program.processes > 1 and tool != "traceml":  # which starts them itself
            printed = _with_ranks(tool, program, (seconds, fewest), folder)
        else:
            printed = forker.run(f"{MODULES[tool]}:main", arguments, folder=Path(folder), limit=LIMIT_SECONDS)
    lines = [line for line in printed if line.startswith('{"said"')]
    answer: Row = json.loads(lines[0]) if lines else {"said": [], "why": " | ".join(printed[-6:])[-300:], "error": True}
    return answer | {"seconds": round(time.monotonic() - start, 1)}


def _with_ranks(tool: str, program: Program, times: Sequence[float], folder: str) -> list[str]:
    """The lines that a tool in each process of a program prints, the first process first."""
    launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={program.processes}", "--tee", "1"]
    command = [sys.executable, "-m", *launcher, "-m", MODULES[tool], *map(str, times), str(program.path), *program.words]
    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        out = f"took more than {LIMIT_SECONDS:.0f} s"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return [
        line.partition("]:")[2] or line for line in sorted(out.splitlines(), key=lambda line: not line.startswith("[default0]:"))
    ]


def score(tool: str, rows: Sequence[Row]) -> Row:
    """How often a tool is right, by cause and in all; `none` is no verdict, `wrong` another cause."""
    table: dict[str, Row] = {}
    for row in rows:
        if tool not in row:
            continue
        groups = _groups(tool, row)
        truth, accepted = row["put_in"], set(row.get("accepted", [row["put_in"]]))
        right = bool(groups) and not accepted.isdisjoint(groups[0])
        counted = {
            "programs": 1,
            "right": right,
            "exact": right and groups[0][0] in accepted,
            "top_2": any(not accepted.isdisjoint(group) for group in groups[:2]),
            "none": not groups,
            "wrong": bool(groups) and not right,
        }
        for key in (truth, "all"):
            sums = table.setdefault(key, dict.fromkeys(counted, 0))
            for name, value in counted.items():
                sums[name] += int(value)
    return table


def _groups(tool: str, row: Row) -> list[tuple[str, ...]]:
    if tool == "stoker":
        return [(one,) for one in row["stoker"]["said"] if one not in (None, "none", "error")]
    return causes_of(tool, row[tool]["said"])


def with_stoker(rows: dict[str, Row]) -> list[Row]:
    """The rows of the other tools with Stoker's verdicts, in the order of the table; sabotaged programs have no cause to name."""
    known: dict[str, Row] = {}
    for name in STOKER:
        path = record.RESULTS / name
        known |= {row["name"]: row for row in (json.loads(path.read_text())["programs"] if path.exists() else [])}
    found = []
    for program in PROGRAMS:
        if program.name not in rows:
            continue
        row = {"name": program.name, "device": program.device, "put_in": program.verdict, **rows[program.name]}
        if program.without or program.also:
            row["accepted"] = accepted_causes(program)
        said = known.get(program.name, {})
        if "verdict" in said:
            row["stoker"] = {"said": [said["verdict"], said["second"]]}
        found.append(row)
    return found


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=QUESTION)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="Programs whose names begin so; what is known of others stays.")
    parser.add_argument("--tools", nargs="+", choices=tuple(MODULES), default=list(MODULES))
    parser.add_argument("--seconds", type=float, default=SECONDS, help="Of training for each tool.")
    parser.add_argument("--parallel", type=int, default=0, metavar="N", help="N programs at a time, each on two cores of its own.")
    parser.add_argument("--until", type=float, metavar="SECONDS", help="Start no program that would end later than this from now.")
    parser.add_argument("--missing", action="store_true", help="Only tools that have not answered about a program.")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="Only programs of this device.")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="Run nothing: take the rows of these result files.")
    parser.add_argument("--score", action="store_true", help="Run nothing: count again what is known.")
    parser.add_argument("--out", type=Path, metavar="FILE", help="Where the results go, instead of benchmarks/results.")
    return parser.parse_args()


def cause_by_cause(programs: Sequence[Program]) -> list[Program]:
    """The first program of each cause, then the second of each, and so on."""
    seen: dict[str, int] = {}
    turns = {}
    for program in programs:
        turns[program.name] = seen[program.verdict] = seen.get(program.verdict, 0) + 1
    return sorted(programs, key=lambda program: turns[program.name])  # which keeps the order of the table within a turn


def _rows(path: Path) -> dict[str, Row]:
    known = json.loads(path.read_text())["programs"] if path.exists() else []
    return {row["name"]: {tool: row[tool] for tool in MODULES if tool in row} for row in known}


def merge_into(path: Path, files: Sequence[Path]) -> None:
    """Write the answers of other result files to one, and count again; the record names the machine of the last of them."""
    rows = _rows(path)
    measured = {}
    for other in files or [path]:
        for name, row in _rows(other).items():
            rows[name] = {**rows.get(name, {}), **row}
        measured = {key: value for key, value in json.loads(other.read_text()).items() if key in ("command", "commit", "machine")}
    _save(rows, path, **measured)


def _answered(rows: dict[str, Row], name: str, tool: str) -> bool:
    return "error" not in rows.get(name, {}).get(tool, {"error": True})


def main() -> None:
    """Ask the tools about the programs that were asked for."""
    asked = _asked()
    names = tuple(asked.only or [""])
    path = asked.out or record.RESULTS / "bench_verdict_tools.json"
    rows = _rows(path)
    if asked.score or asked.merge:
        merge_into(path, asked.merge or ())
        return
    chosen = [program for program in PROGRAMS if program.name.startswith(names) and program.kind != "sabotaged"]
    chosen = cause_by_cause([one for one in chosen if asked.device in (None, one.device) and can_run(one)])
    tools = {one.name: [tool for tool in asked.tools if not (asked.missing and _answered(rows, one.name, tool))] for one in chosen}
    chosen = sorted((one for one in chosen if tools[one.name]), key=lambda one: len(tools[one.name]))
    lanes = make_lanes(asked.parallel, usable_cores(), gpu=any(one.device == "cuda" for one in chosen))
    end = float("inf") if asked.until is None else time.monotonic() + asked.until
    deadline = Deadline(
        seconds={name: ONE_TOOL_SECONDS * len(left) for name, left in tools.items()}, usual=ONE_TOOL_SECONDS, end=end
    )
    start, left = time.monotonic(), {one.name for one in chosen}
    with data_for(chosen) as data:
        of_tools = partial(ask, tools=tools, seconds=asked.seconds, data=data)
        for program, row in side_by_side(lanes, chosen, of_tools, may_start=deadline.allows):
            left.discard(program.name)
            rows[program.name] = {**rows.get(program.name, {}), **row}
            progress = f"{len(chosen) - len(left):3}/{len(chosen)} {time.monotonic() - start:4.0f} s"
            print(f"{progress}  {program.name:30} {program.verdict:12} {json.dumps(row)}", flush=True)
            _save(rows, path)
    if left:
        print(f"no time for {len(left)} programs (--missing asks about them): {' '.join(sorted(left))}")


def compare(table: Sequence[Row]) -> dict[str, Row]:
    """The scores of all tools that were asked, on the programs that all of them were asked about."""
    tools = [tool for tool in ("stoker", *MODULES) if any(tool in row for row in table)]
    common = [row for row in table if all(tool in row for tool in tools)]
    return {tool: score(tool, common) for tool in tools}


def _save(rows: dict[str, Row], path: Path, **measured: Any) -> None:
    table = with_stoker(rows)
    answer = {**measured, "by_tool": compare(table), "programs": table}
    record.save("bench_verdict_tools", QUESTION, answer, path=path, show=False)


if __name__ == "__main__":
    main()

"""Public training scripts: fetch them, diagnose them, and measure by ablation which cause is the true one.

    python -m verdicts.public list
    python -m verdicts.public fetch --source 'PLACE/{owner}/{name}'
    python -m verdicts.public run mnist nanogpt
    python -m verdicts.public ablate all --parallel 7
    python -m verdicts.public both all --parallel 7 --missing
    python -m verdicts.public table
    python -m verdicts.public save

The scripts belong to others and are not part of this project: `fetch` takes them from git repositories, a URL or a folder of clones.
`recipes.toml` has a recipe per script. The dependency group `public-scripts` of pyproject.toml has what some of them import. All run
on a CPU without a network, with synthetic data. Results are JSON lines, written as they come, in the folder given by --work (or --out).
`table` compares verdicts with ablations, and `save` adds them to benchmarks/results/public_verdicts.json. `--parallel` gives each script
two cores of its own, `--until` ends a run in time, and `--missing` continues it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verdicts.lanes import Deadline, make_lanes, side_by_side, usable_cores
from verdicts.measure import ROOT
from verdicts.public.ablation import ENVIRONMENT, measure, noise, shares
from verdicts.public.recipes import Recipe, Recipes, fetch, lay_out, read_recipes
from verdicts.public.results import FILES, judged, known, save, with_lines

Row = dict[str, Any]
USUAL_SECONDS = {"run": 45.0, "ablate": 40.0}
"""Of one script on two quiet cores."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command for a script."""

    command: str
    recipe: Recipe

    @property
    def name(self) -> str:
        """Of the script."""
        return self.recipe.name

    @property
    def device(self) -> str:
        """Of the script."""
        return self.recipe.device


def diagnose(recipe: Recipe, fetched: Path, *, limit: float, keep: Path | None = None) -> Row:
    """What the command says of a script, in a folder of its own; `keep` gets what was measured."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        folder = lay_out(recipe, fetched, Path(scratch))
        command = [sys.executable, "-m", "stoker", "diagnose", "--json", "--quiet", Path(recipe.script).name, "--"]
        start = time.perf_counter()
        process = subprocess.Popen(
            [*command, *recipe.arguments.split()],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder / recipe.path), os.environ.get("PYTHONPATH", "")])},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = process.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            out, errors = "", f"took more than {limit:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    row: Row = {"name": recipe.name, "seconds": round(time.perf_counter() - start, 1), "cores": len(os.sched_getaffinity(0))}
    if not out.strip():
        return row | {"verdict": "error", "why": errors.strip()[-1500:]}
    finding = json.loads(out)
    if keep is not None:
        keep.mkdir(parents=True, exist_ok=True)
        measured = finding["measurements"]
        measured["losses"] = [loss for loss in measured["losses"] if loss is not None]  # without the non-finite ones
        (keep / f"{recipe.name}.json").write_text(json.dumps(measured))
    likely = finding.get("likely")
    return row | {
        "verdict": finding["verdict"],
        "second": finding["second"],
        "likely": likely and likely["verdict"],
        "shares": {cause["verdict"]: round(cause["share"], 3) for cause in finding["causes"][:5]},
        "confidence": finding["confidence"],
        "place": finding["place"],
        "why": finding["why"],
    }


def ablate(recipe: Recipe, fetched: Path, *, seconds: float) -> Row:
    """The share of a step of each cause, by ablation."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        times = measure(recipe, fetched, Path(scratch), seconds=seconds)
    found = shares(times, recipe.times)
    ms = {name: [round(1e3 * step, 4) if step == step else None for step in steps] for name, steps in times.items()}
    answer = {"name": recipe.name, "step_ms": ms, "shares": {name: round(share, 3) for name, share in found.items()}}
    return answer | {"noise": round(noise(times), 3), "cores": len(os.sched_getaffinity(0))}


def _table(found: Row) -> None:
    for row in found["programs"]:
        said = row["verdict"] if row["verdict"] != "none" else f"none ({row['likely']})"
        if "right" not in row:
            print(f"{row['name']:28} {said:22} no ablation")
            continue
        parts = " ".join(f"{cause} {share:.2f}" for cause, share in row["ablation"].items())
        mark = "right" if row["right"] else "second" if row["among_two"] else "WRONG"
        print(f"{row['name']:28} {said:22} {mark:6} accepted: {', '.join(row['accepted'])}; ablation: {parts}")
    print(json.dumps(found["scripts"]))


def _ablate_apart(recipe: Recipe, *, work: Path, seconds: float, limit: float) -> Row:
    """`ablate` in a process of its own, whose forks then have the cores of this thread and no other threads."""
    command = [sys.executable, "-m", "verdicts.public", "one-ablation", recipe.name, "--work", str(work)]
    try:
        done = subprocess.run(
            [*command, "--seconds", str(seconds)], capture_output=True, text=True, check=False, timeout=limit, cwd=ROOT
        )
    except subprocess.TimeoutExpired:
        return {"name": recipe.name, "error": f"took more than {limit:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"name"')]
    row: Row = json.loads(lines[-1]) if lines else {"name": recipe.name, "error": done.stderr.strip()[-1500:]}
    return row


def _one_ablation(recipe: Recipe, fetched: Path, *, seconds: float) -> Row:
    try:
        return ablate(recipe, fetched, seconds=seconds)
    except (RuntimeError, ValueError) as error:
        return {"name": recipe.name, "error": str(error)[-1500:]}


def _fetch_all(recipes: Recipes, chosen: Sequence[Recipe], asked: argparse.Namespace) -> None:
    for recipe in chosen:
        fetched = asked.work / "scripts" / recipe.name
        shutil.rmtree(fetched, ignore_errors=True)
        fetched.mkdir(parents=True)
        repository = recipes.repositories[recipe.repository]
        fetch(recipe, repository, source=asked.source, target=fetched)
        print(f"{recipe.name}: {recipe.repository} at {repository.commit[:12]}", flush=True)


def _run_all(chosen: Sequence[Recipe], asked: argparse.Namespace) -> None:
    """Diagnose or ablate scripts side by side, or both; each result is a line of a file as soon as it is there."""
    asked.out.mkdir(parents=True, exist_ok=True)
    for recipe in chosen:
        if not (asked.work / "scripts" / recipe.name).exists():
            sys.exit(f"{recipe.name} is not in {asked.work}/scripts: run `fetch` first")
    commands = [asked.command] if asked.command in FILES else list(FILES)
    done = {command: known(asked.out / FILES[command]) if asked.missing else {} for command in commands}
    jobs = [Job(command=command, recipe=recipe) for recipe in chosen for command in commands if recipe.name not in done[command]]
    jobs = [job for job in jobs if job.command == "run" or not job.recipe.not_ablated]

    def run(job: Job) -> Row:
        if job.command == "run":
            return diagnose(job.recipe, asked.work / "scripts" / job.name, limit=asked.limit, keep=asked.keep)
        return _ablate_apart(job.recipe, work=asked.work, seconds=asked.seconds, limit=2 * asked.limit)

    end = float("inf") if asked.until is None else time.monotonic() + asked.until
    deadlines = {command: Deadline(usual=USUAL_SECONDS[command], end=end) for command in commands}
    lanes = make_lanes(asked.parallel, usable_cores(), gpu=False)
    start, left = time.monotonic(), list(jobs)
    for job, row in side_by_side(lanes, jobs, run, may_start=lambda job: deadlines[job.command].allows(job)):
        left.remove(job)
        with (asked.out / FILES[job.command]).open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        print(f"{len(jobs) - len(left):3}/{len(jobs)} {time.monotonic() - start:4.0f} s  {json.dumps(row)}", flush=True)
    if left:
        print(f"no time for {len(left)} (--missing runs them): {' '.join(f'{job.command}:{job.name}' for job in left)}")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "fetch", "run", "ablate", "both", "table", "save", "one-ablation"])
    parser.add_argument("names", nargs="*", default=["all"], metavar="NAME", help="Recipes; all of them by default.")
    parser.add_argument("--work", type=Path, default=Path("public-scripts"), help="Folder of scripts and results.")
    parser.add_argument(
        "--source",
        default=os.environ.get("STOKER_SCRIPTS_SOURCE"),
        help="Where the repositories are: a git URL or a folder with {owner} and {name} in it (or set STOKER_SCRIPTS_SOURCE).",
    )
    parser.add_argument("--parallel", type=int, default=0, metavar="N", help="N scripts at a time, each on two cores of its own.")
    parser.add_argument("--until", type=float, metavar="SECONDS", help="Start no script that would end later than this from now.")
    parser.add_argument("--missing", action="store_true", help="Only scripts without a result.")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="Where results go, instead of --work.")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="Keep what was measured: one JSON file per script.")
    parser.add_argument("--limit", type=float, default=90.0, help="Seconds that one diagnosis may take.")
    parser.add_argument("--seconds", type=float, default=3.0, help="Seconds that each variant of an ablation is measured.")
    asked = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    asked.work = asked.work.resolve()
    asked.out = asked.out.resolve() if asked.out else asked.work
    recipes = read_recipes()
    chosen = list(recipes.scripts.values()) if "all" in asked.names else [_named(recipes, name) for name in asked.names]
    if asked.command == "list":
        for recipe in chosen:
            print(f"{recipe.name:28} {recipe.repository} {recipe.script} ({recipes.repositories[recipe.repository].licence})")
    elif asked.command == "table":
        _table(judged(with_lines([], asked.out, recipes.scripts), recipes.scripts))
    elif asked.command == "save":
        save(asked.out, recipes.scripts)
    elif asked.command == "fetch":
        if not asked.source:
            parser.error("fetch needs --source, for example a folder of clones: --source 'clones/{owner}/{name}'")
        _fetch_all(recipes, chosen, asked)
    elif asked.command == "one-ablation":
        (recipe,) = chosen
        print(json.dumps(_one_ablation(recipe, asked.work / "scripts" / recipe.name, seconds=asked.seconds)))
    else:
        _run_all(chosen, asked)


def _named(recipes: Recipes, name: str) -> Recipe:
    if name not in recipes.scripts:
        sys.exit(f"{name}: no such recipe; `list` names them all")
    return recipes.scripts[name]


if __name__ == "__main__":
    main()

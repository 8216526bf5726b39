"""Public training scripts: fetch them, diagnose them, and measure by ablation which cause is the true one.

    python -m benchmarks.verdicts.public list
    python -m benchmarks.verdicts.public fetch --source 'PLACE/{owner}/{name}'
    python -m benchmarks.verdicts.public run mnist nanogpt
    python -m benchmarks.verdicts.public ablate all
    python -m benchmarks.verdicts.public table

The scripts belong to others and are not part of this project: `fetch` takes them from git repositories, a URL or a folder of clones.
`recipes.toml` has a recipe per script, `requirements.txt` the packages that some of them import. All run on a CPU without a network,
with synthetic data. Results are JSON lines in the folder given by --work; `table` compares verdicts with ablations.
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
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.verdicts.public.ablation import ENVIRONMENT, measure, shares
from benchmarks.verdicts.public.recipes import Recipe, Recipes, fetch, lay_out, read_recipes
from benchmarks.verdicts.public.truth import accepted

Row = dict[str, Any]


def diagnose(recipe: Recipe, fetched: Path, *, limit: float) -> Row:
    """What the command says of a script, in a folder of its own."""
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
    ms = {name: round(1e3 * step, 4) for name, step in times.items()}
    return {"name": recipe.name, "step_ms": ms, "shares": {name: round(share, 3) for name, share in found.items()}}


def _table(work: Path) -> None:
    verdicts, truths = _known(work / "verdicts.jsonl"), _known(work / "ablations.jsonl")
    right = judged = 0
    for name, row in verdicts.items():
        said = row["verdict"] if row["verdict"] != "none" else f"none ({row['likely']})"
        if name not in truths or "shares" not in truths[name]:
            print(f"{name:28} {said:22} no ablation")
            continue
        causes = accepted(truths[name]["shares"])
        ok = row["verdict"] in causes
        judged, right = judged + 1, right + ok
        parts = " ".join(f"{cause} {share:.2f}" for cause, share in truths[name]["shares"].items())
        print(f"{name:28} {said:22} {'right' if ok else 'WRONG'}  accepted: {', '.join(sorted(causes))}; ablation: {parts}")
    print(f"{len(verdicts)} diagnosed, {sum(row['verdict'] == 'error' for row in verdicts.values())} did not run")
    print(f"{judged} with an ablation, {right} right")


def _known(path: Path) -> dict[str, Row]:
    """The last row of each name."""
    if not path.exists():
        return {}
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}


def _each(recipes: Recipes, asked: argparse.Namespace) -> None:
    names = list(recipes.scripts) if "all" in asked.names else asked.names
    part, parts = map(int, asked.part.split("/"))
    names = names[part::parts]
    for name in names:
        if name not in recipes.scripts:
            sys.exit(f"{name}: no such recipe; `list` names them all")
        recipe, fetched = recipes.scripts[name], asked.work / "scripts" / name
        if asked.command == "fetch":
            shutil.rmtree(fetched, ignore_errors=True)
            fetched.mkdir(parents=True)
            fetch(recipe, recipes.repositories[recipe.repository], source=asked.source, target=fetched)
            print(f"{name}: {recipe.repository} at {recipes.repositories[recipe.repository].commit[:12]}", flush=True)
            continue
        if not fetched.exists():
            sys.exit(f"{name} is not in {asked.work}/scripts: run `fetch` first")
        try:
            if asked.command == "run":
                row, kind = diagnose(recipe, fetched, limit=asked.limit), "verdicts"
            else:
                row, kind = ablate(recipe, fetched, seconds=asked.seconds), "ablations"
        except RuntimeError as error:
            row, kind = {"name": name, "error": str(error)[-1500:]}, "ablations"
        with (asked.work / f"{kind}.jsonl").open("a") as lines:
            lines.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["list", "fetch", "run", "ablate", "table"])
    parser.add_argument("names", nargs="*", default=["all"], metavar="NAME", help="Recipes; all of them by default.")
    parser.add_argument("--work", type=Path, default=Path("public-scripts"), help="Folder of scripts and results.")
    parser.add_argument(
        "--source",
        default=os.environ.get("STOKER_SCRIPTS_SOURCE"),
        help="Where the repositories are: a git URL or a folder with {owner} and {name} in it (or set STOKER_SCRIPTS_SOURCE).",
    )
    parser.add_argument(
        "--part", default="0/1", metavar="I/N", help="Only part I (from 0) of N: for N processes on cores of their own."
    )
    parser.add_argument("--limit", type=float, default=90.0, help="Seconds that one diagnosis may take.")
    parser.add_argument("--seconds", type=float, default=3.0, help="Seconds that each variant of an ablation is measured.")
    asked = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    recipes = read_recipes()
    if asked.command == "list":
        for recipe in recipes.scripts.values():
            print(f"{recipe.name:28} {recipe.repository} {recipe.script} ({recipes.repositories[recipe.repository].licence})")
    elif asked.command == "table":
        _table(asked.work)
    elif asked.command == "fetch" and not asked.source:
        parser.error("fetch needs --source, for example a folder of clones: --source 'clones/{owner}/{name}'")
    else:
        asked.work = asked.work.resolve()
        _each(recipes, asked)


if __name__ == "__main__":
    main()

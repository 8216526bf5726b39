"""Verdicts of public scripts beside their ablations: which are right, and how they get into the result file.

Scripts of later sets were added when the rule was finished. What was said of one at first is kept (`first`), and `unseen` counts
that alone, whatever the rule says later.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks import record

from verdicts.public.recipes import Recipe
from verdicts.public.truth import accepted

NAME = "public_verdicts"
QUESTION = "Of public training scripts, on how many does `stoker diagnose` run, and how often does an ablation confirm its verdict?"
MAX_NOISE = 0.15
"""Difference of the runs of an unchanged script above which its ablation decides nothing."""
JUDGED = ("ablation", "noise", "accepted", "right", "among_two")
FILES = {"run": "verdicts.jsonl", "ablate": "ablations.jsonl"}
Row = dict[str, Any]


def known(path: Path) -> dict[str, Row]:
    """The last row of each name in a file of JSON lines."""
    if not path.exists():
        return {}
    return {row["name"]: row for row in map(json.loads, path.read_text().splitlines())}


def judge(verdicts: Mapping[str, Row], truths: Mapping[str, Row], recipes: int) -> Row:
    """Each script with the causes that its ablation accepts, and how many verdicts are among them."""
    rows = []
    for name, said in verdicts.items():
        truth = truths.get(name, {})
        row = {**said, "ablation": truth.get("shares"), "noise": truth.get("noise")}
        if row["ablation"] is not None and (row["noise"] or 0.0) <= MAX_NOISE:
            row["accepted"] = sorted(accepted(row["ablation"]))
            row["right"] = row["verdict"] in row["accepted"]
            row["among_two"] = row["right"] or row.get("second") in row["accepted"]
        rows.append(row)
    judged = [row for row in rows if "right" in row]
    numbers = {
        "recipes": recipes,
        "diagnosed": len(rows),
        "ran": sum(row["verdict"] != "error" for row in rows),
        "verdict": sum(row["verdict"] not in ("none", "error") for row in rows),
        "likely": sum(row["verdict"] == "none" and row["likely"] is not None for row in rows),
        "ablated": sum(row["ablation"] is not None for row in rows),
        "judged": len(judged),
        "top_1": sum(row["right"] for row in judged),
        "top_2": sum(row["among_two"] for row in judged),
    }
    return {"scripts": numbers, "programs": rows}


def judged(rows: Iterable[Row], recipes: Mapping[str, Recipe]) -> Row:
    """Rows of scripts judged again: all of them, and those of later sets, also set by set, by what was said at first."""
    rows = [row for row in rows if row["name"] in recipes]
    truths = {
        row["name"]: {"shares": row["ablation"], "noise": row["noise"]}
        for row in rows
        if row.get("ablation") is not None and not recipes[row["name"]].not_ablated
    }
    verdicts = {row["name"]: {key: value for key, value in row.items() if key not in JUDGED} for row in rows}
    first = {name: row | row["first"] for name, row in verdicts.items() if "first" in row}

    def of_sets(*sets: int) -> Row:
        chosen = {name: row for name, row in first.items() if recipes[name].set in sets}
        numbers: Row = judge(chosen, truths, sum(recipe.set in sets for recipe in recipes.values()))["scripts"]
        return numbers

    later = sorted({recipe.set for recipe in recipes.values()} - {1})
    sets = {str(number): of_sets(number) for number in later}
    return {**judge(verdicts, truths, len(recipes)), "unseen": of_sets(*later), "sets": sets}


def with_lines(rows: Iterable[Row], folder: Path, recipes: Mapping[str, Recipe]) -> list[Row]:
    """Rows with the results of another run; an ablation that decides nothing does not replace another one."""
    table = {row["name"]: row for row in rows}
    for name, said in known(folder / FILES["run"]).items():
        if "verdict" not in said or name not in recipes:
            continue
        table[name] = {**table.get(name, {}), **said}
        if recipes[name].set > 1:
            table[name].setdefault("first", {key: said.get(key) for key in ("verdict", "second", "likely")})
    for name, truth in known(folder / FILES["ablate"]).items():
        row = table.get(name)
        if row is None or "shares" not in truth:
            continue
        if row.get("ablation") is None or (row["noise"] or 0.0) > MAX_NOISE or truth["noise"] <= MAX_NOISE:
            row |= {"ablation": truth["shares"], "noise": truth["noise"]}
    return list(table.values())


def save(folder: Path, recipes: Mapping[str, Recipe]) -> None:
    """Add the results of a folder to the result file."""
    path = record.RESULTS / f"{NAME}.json"
    before: list[Row] = json.loads(path.read_text())["programs"] if path.exists() else []
    record.save(NAME, QUESTION, judged(with_lines(before, folder, recipes), recipes), show=False)

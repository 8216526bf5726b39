"""The tables of the README of this folder, from the result files: `python -m verdicts.summary --write`.

1. Verdicts of Stoker by cause, beside what the ablation of these programs measured.
2. All tools, by cause, on the programs that all of them were asked about.
3. Public scripts, of which the truth is the ablation alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record

from verdicts.other_tools import MODULES, compare
from verdicts.run import contradicted, is_among_two, is_right

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- results: written by `python -m verdicts.summary --write` -->\n", "<!-- end of results -->"
TOOLS = {"stoker": "`stoker diagnose`", "traceml": "TraceML 0.5", "gpuprof": "gpuprof 0.7", "profiler": "rule on `torch.profiler`"}
COUNTED = {"right": "right", "exact": "exact", "top_2": "top-2", "none": "NO VERDICT", "wrong": "wrong"}
Row = dict[str, Any]


def _read(name: str) -> Row:
    path = record.RESULTS / f"{name}.json"
    found: Row = json.loads(path.read_text()) if path.exists() else {}
    return found


def programs() -> list[Row]:
    """The rows of all programs that were diagnosed, of both devices."""
    rows = [row for name in ("bench_verdicts", "gpu_verdicts") for row in _read(name).get("programs", [])]
    return [row for row in rows if "verdict" in row]


def by_cause(rows: Sequence[Row]) -> Iterator[str]:
    """The first table."""
    yield "| cause | programs | top-1 | top-2 | NO VERDICT | wrong | fix measured | confirmed | median gain |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    disturbed = [row for row in rows if row["put_in"] == "none"]
    rows = [row for row in rows if row["put_in"] != "none"]
    for cause in sorted({row["put_in"] for row in rows}):
        yield _cause(cause, [row for row in rows if row["put_in"] == cause])
    yield _cause("**all**", rows)
    right = sum(row["verdict"] == "none" for row in disturbed)
    yield f"| disturbed on purpose | {len(disturbed)} | {right} | {right} | {right} | {len(disturbed) - right} | | | |"


def _cause(name: str, rows: Sequence[Row]) -> str:
    none = sum(row["verdict"] in ("none", "error") for row in rows)
    right, two = sum(map(is_right, rows)), sum(map(is_among_two, rows))
    fixed = [row for row in rows if "gain" in row]
    confirmed = sum(not contradicted(row) for row in fixed)
    gain = f"{100 * statistics.median(max(row['gain'], row['gain_cpu']) for row in fixed):.0f} %" if fixed else ""
    numbers = [len(rows), right, two, none, len(rows) - right - none, len(fixed), confirmed if fixed else ""]
    return f"| {name} | {' | '.join(map(str, numbers))} | {gain} |"


def by_tool(rows: Sequence[Row]) -> Iterator[str]:
    """The second table; empty where fewer than two tools were asked."""
    scores = compare(rows)
    if len(scores) < 2:
        return
    tables = list(scores.values())
    yield f"| cause | programs | {' | '.join(TOOLS[tool] for tool in scores)} |"
    yield f"|{' --- |' * (len(scores) + 2)}"
    for cause in sorted(set(tables[0]) - {"all"}):
        right = (str(table[cause]["right"]) for table in tables)
        yield f"| {cause} | {tables[0][cause]['programs']} | {' | '.join(right)} |"
    for key, words in COUNTED.items():
        numbers = (str(table["all"][key]) for table in tables)
        yield f"| **{words}** | {tables[0]['all']['programs']} | {' | '.join(numbers)} |"


def of_public(found: Row) -> Iterator[str]:
    """The third table."""
    yield "| public scripts | recipes | diagnosed | ran | verdict | NO VERDICT, likely cause named | with an ablation | top-1 | top-2 |"
    yield f"|{' --- |' * 9}"
    keys = ("recipes", "diagnosed", "ran", "verdict", "likely", "judged", "top_1", "top_2")
    sets = found.get("sets", {"2": found.get("unseen", {"diagnosed": 0})})
    later = {f"set {number}, as first diagnosed": numbers for number, numbers in sets.items()}
    for name, numbers in {"all, by the rule of today": found["scripts"], **later}.items():
        if numbers["diagnosed"]:
            yield f"| {name} | {' | '.join(str(numbers[key]) for key in keys)} |"


def tables() -> str:
    """All tables as Markdown."""
    rows = programs()
    parts = ["Verdicts by cause, and what the fix of each program gained:", "\n".join(by_cause(rows))]
    tools = _read("bench_verdict_tools")
    compared = "\n".join(by_tool(tools.get("programs", [])))
    if compared:
        missing = [TOOLS[tool] for tool in MODULES if not any(tool in row for row in tools["programs"])]
        without = f" {', '.join(missing)} was not asked." if missing else ""
        parts += [f"Programs of which each tool names the cause, of those that all of them were asked about.{without}", compared]
    public = _read("public_verdicts")
    if public:
        parts += [
            "Public scripts; the accepted causes of a script are those that its ablation allows:",
            "\n".join(of_public(public)),
        ]
    return "\n\n".join(parts) + "\n"


def readme(text: str) -> str:
    """The README with the current tables between its marks."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + "\n" + tables() + "\n" + END + rest.split(END)[1]


def main() -> None:
    """Print the tables, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="Write them to the README.")
    if parser.parse_args().write:
        README.write_text(readme(README.read_text()))
    else:
        print(tables())


if __name__ == "__main__":
    main()

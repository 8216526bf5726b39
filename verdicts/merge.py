"""Add results of another machine to the result files and the pages that show them: `python -m verdicts.merge FOLDER ...`.

Files are known by their names, in a folder and in those below it: `cpu*.json` and `gpu*.json` (verdicts and gains of `bench_verdicts`),
`tools_*.json` (answers of `bench_verdict_tools`), `verdicts.jsonl` and `ablations.jsonl` (public scripts). Later folders win.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page, record

from verdicts import other_tools, run, summary
from verdicts.public import results
from verdicts.public.recipes import read_recipes

RESULT_OF = {"cpu*.json": "bench_verdicts.json", "gpu*.json": "gpu_verdicts.json"}


def merge(folder: Path, *, commit: str = "") -> list[str]:
    """Add the files of a folder to the results; returns what was added."""
    added = []
    for pattern, name in RESULT_OF.items():
        for path in sorted(folder.rglob(pattern)):
            run.merge_into(record.RESULTS / name, [path], commit=commit)
            added.append(f"{path} -> {name}")
    answers = sorted(folder.rglob("tools_*.json"))
    if answers:
        other_tools.merge_into(record.RESULTS / "bench_verdict_tools.json", answers)
        added += [f"{path} -> bench_verdict_tools.json" for path in answers]
    for path in sorted({path.parent for name in results.FILES.values() for path in folder.rglob(name)}):
        results.save(path, read_recipes().scripts)
        added.append(f"{path} -> {results.NAME}.json")
    return added


def main(words: Sequence[str] | None = None) -> None:
    """Merge folders, and write the tables of the README and the page of all benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("--commit", default="", help="Of files that do not say which commit was measured.")
    asked = parser.parse_args(words)
    for folder in asked.folders:
        for line in merge(folder, commit=asked.commit) or [f"{folder}: no results"]:
            print(line)
    summary.README.write_text(summary.readme(summary.README.read_text()))
    page.PAGE.write_text(page.page())
    page.README.write_text(page.readme(page.README.read_text()))


if __name__ == "__main__":
    main()

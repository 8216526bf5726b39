"""What do analyze and encode of `compat` cost, next to mostlyai-engine on the same tables?

Both read and write a workspace of the same events, with a column for every encoding of `compat`; that stats.json is equal is
checked. They run in one process, in turns; times are CPU times, one process as mostlyai-engine starts it
on 2 cores. Needs mostlyai-engine (`make test-originals` installs it); run it with that Python.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from tests.recipes.tabular.compat_tables import TYPES, every_kind, split

from benchmarks import record
from stoker_recipes.tabular import compat

QUESTION = "What do analyze and encode of compat cost, next to mostlyai-engine on the same tables?"


def main() -> None:
    options = record.arguments(QUESTION)
    warnings.filterwarnings("ignore")
    subjects, rounds = (60, 1) if options.small else (2000, options.rounds or 2)
    sides = {"stoker": compat}
    try:
        from mostlyai import engine  # type: ignore[import-not-found, import-untyped, unused-ignore]

        sides = {"mostlyai-engine": engine, "stoker": compat}
    except ImportError:
        if not options.small:
            raise
    with TemporaryDirectory() as folder:
        answer = compare(sides, subjects, rounds, Path(folder))
    print(json.dumps(answer, indent=1)) if options.small else record.save("bench_compat", QUESTION, answer)


def compare(sides: dict[str, Any], num_subjects: int, rounds: int, folder: Path) -> dict[str, Any]:
    """CPU seconds of both steps, in turns."""
    events, context = every_kind(num_subjects)
    answer: dict[str, Any] = {"rows": len(events), "columns": len(events.columns) - 1, "rounds": rounds}
    for name in sides:
        split(folder / name, events, context, types=TYPES)
    for step in ("analyze", "encode"):

        def run(name: str, step: str = step) -> None:
            np.random.seed(1)
            getattr(sides[name], step)(workspace_dir=folder / name)

        seconds = record.interleave({name: lambda name=name: run(name) for name in sides}, rounds=rounds, clock=time.process_time)  # type: ignore[misc]
        answer[step] = {"CPU seconds": {name: record.spread(several) for name, several in seconds.items()}}
        if len(sides) > 1:
            answer[step]["times as fast"] = record.ratio(seconds["mostlyai-engine"], seconds["stoker"])
    if len(sides) > 1:
        both = [(folder / name / "ModelStore/tgt-stats/stats.json").read_bytes() for name in sides]
        answer["stats.json equal"] = both[0] == both[1]
    return answer


if __name__ == "__main__":
    main()

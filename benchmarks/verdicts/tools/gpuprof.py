"""gpuprof 0.7: the script inside `gpuprof.profile()`, as its quickstart shows, and its insights of that run."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.verdicts.measure import Enough, stop_after

SEVERITIES = ("high", "medium", "low")


def main(seconds: float, script: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """The rules that fired, the most severe first."""
    import gpuprof
    from gpuprof import insights

    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    stop_after(seconds)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Enough), gpuprof.profile("run", db_path="gpuprof.db"):
        runpy.run_path(str(script), run_name="__main__")
    fired: list[tuple[int, str, str]] = []
    with contextlib.closing(insights.sqlite3.connect("gpuprof.db")) as database:
        context = insights._build_ctx(database, 1)
    for rule in insights.RULES:
        found = rule(context)
        if found:
            fired.append((SEVERITIES.index(found["severity"]), rule.__name__.removeprefix("rule_"), found["title"]))
    fired.sort(key=lambda one: one[0])  # rules of one severity keep gpuprof's own order
    return {"said": [name for _, name, _ in fired], "why": fired[0][2] if fired else None}


if __name__ == "__main__":
    print(json.dumps(main(float(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))

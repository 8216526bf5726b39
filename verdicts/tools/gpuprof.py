"""gpuprof 0.7: the script inside `gpuprof.profile()`, as its quickstart shows, and its insights of that run."""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from verdicts.measure import Enough, stop_after

SEVERITIES = ("high", "medium", "low")


def main(seconds: float, fewest: int, script: str, arguments: Sequence[str], processes: int = 1) -> None:
    """Print the rules that fired, the most severe first."""
    del processes
    import gpuprof
    from gpuprof import insights

    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    stop_after(seconds, fewest)
    database = f"gpuprof{os.environ.get('RANK', '')}.db"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Enough), gpuprof.profile("run", db_path=database):
        runpy.run_path(script, run_name="__main__")
    fired: list[tuple[int, str, str]] = []
    with contextlib.closing(insights.sqlite3.connect(database)) as opened:
        context = insights._build_ctx(opened, 1)
    for rule in insights.RULES:
        found = rule(context)
        if found:
            fired.append((SEVERITIES.index(found["severity"]), rule.__name__.removeprefix("rule_"), found["title"]))
    fired.sort(key=lambda one: one[0])  # rules of one severity keep gpuprof's own order
    answer = {"said": [name for _, name, _ in fired], "why": fired[0][2] if fired else None}
    print("", json.dumps(answer), sep="\n", flush=True)


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])

"""Programs that were kept apart: written without knowledge of the rule, and run once, when it was finished (`apart/programs.toml`)."""

from __future__ import annotations

import tomllib

from verdicts.table.program import FOLDERS, Program

ROWS = tomllib.loads((FOLDERS / "apart" / "programs.toml").read_text())
PACKAGES = {row["script"]: row["package"] for row in ROWS.values() if "package" in row}

APART = [
    Program(
        name=name,
        folder="apart",
        script=row["script"],
        arguments="",
        clean=None,
        verdict=row["cause"],
        kind="apart",
        device=row["device"],
        without=tuple(row["without"]),
        period=row.get("period", 1),
    )
    for name, row in ROWS.items()
]

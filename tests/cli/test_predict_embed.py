"""`stoker embed`: errors before any work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done


@pytest.mark.parametrize(
    ("out", "line"),
    [
        ("e.csv", "OUT is e.csv; expected a name that ends in .npy."),
        ("no/e.npy", "no/e.npy cannot be written: there is no folder no. Create it first."),
        ("e.npy", "run has no recipe.json, so it is not a run of timehut. Give the folder of one."),
    ],
)
def test_errors_are_one_line(
    stoker: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, out: str, line: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = stoker("embed", "run", "--data", "x.tsv", "--out", out)
    assert (done.code, done.err) == (2, f"stoker: {line}\n")

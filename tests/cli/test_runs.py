"""`stoker runs`: a table, a plot, and JSON."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done
from tests.cli.training_folder import make_folder

Stoker = Callable[..., Done]


@pytest.fixture
def runs(stoker: Stoker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    make_folder(tmp_path)
    for name in ("first", "second"):
        assert stoker("train", "c.yaml", "--quiet", "--set", f"folder=runs/{name}").code == 0
    return tmp_path / "runs"


def test_runs_are_listed_and_drawn(stoker: Stoker, runs: Path) -> None:
    pytest.importorskip("matplotlib")
    done = stoker("runs", "--plot", "runs.svg")
    assert (done.code, done.err) == (0, "")
    assert "best val_loss" in done.out
    assert [line.split()[:2] for line in done.out.splitlines()[1:3]] == [["first", "finished"], ["second", "finished"]]
    assert done.out.endswith("plot: runs.svg\n")
    assert "<svg" in Path("runs.svg").read_text()

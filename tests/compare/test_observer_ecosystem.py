"""Programs whose loop a framework runs are observed like plain loops: their losses, samples and random numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose import ecosystem

from stoker.compare.engine import Comparisons
from stoker.compare.sides import Version

pytestmark = pytest.mark.slow  # five processes for each
FRAMEWORKS = {
    "hf": (ecosystem.TRAINER, "report_to=[],", "report_to=[], learning_rate=1e-4,"),
    "lightning": (ecosystem.LIGHTNING, "lr=0.01", "lr=0.02"),
    "accelerate": (ecosystem.ACCELERATE, "lr=0.01", "lr=0.02"),
}


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_framework_is_observed_and_a_change_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    text, old, new = FRAMEWORKS[name]
    program = tmp_path / "train.py"
    program.write_text(text)
    assert old in text
    with Comparisons(Version(program=str(program)), ["192"], steps=20) as comparisons:
        same = comparisons.compare(Version(program=str(program), title="again"), budget=0)
        changed = comparisons.compare(
            Version(program=str(program), edits={str(program): text.replace(old, new).encode()}), budget=0
        )
    assert (same.losses.verdict, same.losses.steps) == ("equal", 20)
    known = {fact.name for fact in same.facts if fact.same}
    assert known >= {"samples", "random", "weights", "parameters"}, str(same)
    assert (changed.losses.verdict, changed.status) == ("changed", 4), str(changed)
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}

"""The counts of a step are the same from run to run, whoever trains: trainers of others, compiled models, worker processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diagnose import ecosystem

from stoker.gate.gate import gate_script

pytestmark = pytest.mark.slow  # a process for each

WORKERS = ecosystem.PLAIN.replace("shuffle=True)", "shuffle=True, num_workers=2)")
PROGRAMS = {
    "hf": ecosystem.TRAINER,
    "lightning": ecosystem.LIGHTNING,
    "accelerate": ecosystem.ACCELERATE,
    "compiled": ecosystem.COMPILED,
    "accumulated": ecosystem.ACCUMULATED,
    "two optimizers": ecosystem.GAN,
    "workers": WORKERS,
    "spawned": ecosystem.SPAWNED,
}


@pytest.mark.promise("P22")
@pytest.mark.parametrize("name", PROGRAMS)
def test_counts_are_the_same_in_two_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAMS[name])
    first = gate_script("train.py", ["192"], budget="budget.json", write=True, quiet=True)
    again = gate_script("train.py", ["192"], budget="budget.json", quiet=True)
    assert first.ok
    assert again.ok, str(again)
    assert again.run.usual == first.run.usual
    assert first.run.usual["ops"].most > 20
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "budget.json"}


@pytest.mark.promise("P22", control=True)
def test_negative_control_a_read_of_the_loss_is_seen_behind_a_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # What is done every few steps makes counts vary, and these are compared with less care.
    text = ecosystem.LIGHTNING.replace(
        "log_every_n_steps=2, val_check_interval=5", "log_every_n_steps=50, enable_progress_bar=False"
    )
    Path("train.py").write_text(text)
    gate_script("train.py", ["192"], budget="budget.json", write=True, quiet=True)
    Path("train.py").write_text(text.replace("        return loss\n", "        loss.item()\n        return loss\n"))
    found = gate_script("train.py", ["192"], budget="budget.json", quiet=True)
    assert [growth.name for growth in found.growths] == ["ops", "syncs"]
    assert "train.py" in str(found)

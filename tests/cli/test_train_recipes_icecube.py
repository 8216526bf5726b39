"""`stoker train icecube` and `stoker predict`: what a user sees."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.calling import Done

from stoker_recipes.icecube import make_events, pack_events

Stoker = Callable[..., Done]
TINY = ("--size", "tiny", "--batch-size", "16", "--epochs", "1", "--warmup", "1", "--device", "cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pack_events(make_events(tmp_path / "icecube", files=2, events=20), tmp_path / "ice.stoker")
    return tmp_path


def test_from_a_store_to_a_submission(stoker: Stoker, folder: Path) -> None:
    done = stoker("train", "icecube", "--data", "ice.stoker", "--valid", "batch_id == 2", *TINY, "--quiet")
    assert (done.code, done.err) == (0, "")
    assert [line.split()[0] for line in done.out.splitlines()] == [
        "loss",
        "val_loss",
        "val_nll",
        "val_degrees",
        "finished:",
        "run:",
    ]
    done = stoker("predict", "runs/ice", "--data", "ice.stoker", "--out", "submission.csv", "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    assert done.out == "40 predictions for 40 events by runs/ice, step 2\nwritten: submission.csv\n"
    rows = list(csv.reader(Path("submission.csv").read_text().splitlines()))
    assert rows[0] == ["event_id", "azimuth", "zenith", "kappa"]
    assert len(rows) == 41
    resumed = stoker("train", "--resume", "runs/ice", "--json", "--device", "cpu")
    assert (resumed.code, json.loads(resumed.out)["step"]) == (0, 2)


@pytest.mark.gpu
def test_a_run_in_cuda_graphs_is_diagnosed(tmp_path: Path) -> None:
    """Replays of a graph are steps. Other programs may use the machine, so the verdict itself is left open."""
    pack_events(make_events(tmp_path / "icecube", files=4, events=1000), tmp_path / "ice.stoker")
    train = ["train", "icecube", "--data", str(tmp_path / "ice.stoker"), "--size", "5m", "--batch-size", "256", "--epochs", "50"]
    command = [sys.executable, "-m", "stoker", "diagnose", "-q", "--json", "-m", "stoker", *train]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode in (0, 3), done.stderr
    assert "are needed" not in found["why"]

"""`stoker icecube make`, `stoker pack --recipe icecube`, `stoker train icecube` and `stoker predict`: what a user sees."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calling import Done

from stoker import open as open_store
from stoker_recipes.icecube import make_events, pack_events

Stoker = Callable[..., Done]
TINY = ("--set", "size=tiny", "--set", "batch_size=16", "--set", "epochs=1", "--set", "warmup=1", "--device", "cpu")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    pack_events(make_events(tmp_path / "icecube", files=2, events=20), tmp_path / "ice.stoker")
    return tmp_path


def test_from_a_store_to_a_submission(stoker: Stoker, folder: Path) -> None:
    done = stoker("train", "icecube", "--data", "ice.stoker", "--set", "valid=batch_id == 2", *TINY, "--quiet")
    assert (done.code, done.err) == (0, "")
    words = [line.split()[0] for line in done.out.splitlines()]
    assert words == ["loss", "val_loss", "val_nll", "val_degrees", "finished:", "run:"]
    done = stoker("predict", "runs/ice", "--data", "ice.stoker", "--out", "submission.csv", "--device", "cpu")
    assert (done.code, done.err) == (0, "")
    assert done.out == "40 predictions for 40 events by runs/ice, step 2\nwritten: submission.csv\nnext: stoker live runs/ice\n"
    rows = list(csv.reader(Path("submission.csv").read_text().splitlines()))
    assert rows[0] == ["event_id", "azimuth", "zenith", "kappa"]
    assert len(rows) == 41
    resumed = stoker("train", "--resume", "runs/ice", "--json", "--device", "cpu")
    assert (resumed.code, json.loads(resumed.out)["step"]) == (0, 2)


LONG = ("--set", "size=5m", "--set", "batch_size=256", "--set", "epochs=50")


@pytest.mark.gpu
def test_a_run_in_cuda_graphs_is_diagnosed(tmp_path: Path) -> None:
    """Replays of a graph are steps. Other programs may use the machine, so the verdict itself is left open."""
    pack_events(make_events(tmp_path / "icecube", files=4, events=1000), tmp_path / "ice.stoker")
    train = ["train", "icecube", "--data", str(tmp_path / "ice.stoker"), *LONG]
    command = [sys.executable, "-m", "stoker", "diagnose", "-q", "--json", "-m", "stoker", *train]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    found = json.loads(done.stdout)
    assert done.returncode in (0, 3), done.stderr
    assert "are needed" not in found["why"]


def test_made_events_are_packed_by_the_recipe(stoker: Stoker, tmp_path: Path) -> None:
    folder, store = tmp_path / "icecube", tmp_path / "ice.stoker"
    make_events(tmp_path / "sorted", files=4, events=5, drift=1.0)
    made = stoker("icecube", "make", folder, "--files", "4", "--events", "5", "--quiet")
    assert made == Done(0, f"wrote 20 events in 4 files: {folder}\n", "")
    packed = stoker("pack", tmp_path / "sorted", store, "--recipe", "icecube", "--batches", "2-3")
    assert packed.code == 0
    assert packed.out.startswith("packed ")
    assert f" pulses into 10 series, 0.0 MB: {store}" in packed.out
    azimuth = open_store(store).column("azimuth")
    assert ((azimuth >= np.pi / 2) & (azimuth < 3 * np.pi / 2)).all()


def test_files_of_the_test_split(stoker: Stoker, tmp_path: Path) -> None:
    make_events(tmp_path / "icecube", files=1, events=5, split="test")
    packed = stoker("pack", tmp_path / "icecube", tmp_path / "a", "--recipe=icecube", "--split", "test", "--json")
    assert (packed.code, packed.err) == (0, "")
    assert '"num_series": 5' in packed.out

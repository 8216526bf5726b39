"""`stoker train timehut` and `stoker timehut embed`: what a user sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calling import Done
from tests.recipes.timehut.sets import write_tsv

Stoker = Callable[..., Done]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_tsv(tmp_path)
    return tmp_path


def test_from_a_file_to_embeddings(stoker: Stoker, folder: Path) -> None:
    data = ("--data", "Waves_TRAIN.tsv", "--test", "Waves_TEST.tsv", "--set", "epochs=2", "--set", "width=16")
    done = stoker("train", "timehut", *data)
    assert done.code == 0, done.err
    words = [line.split(" ")[0] for line in done.out.splitlines()]
    assert words[:5] == ["series", "test", "classes", "scaling", "encoder"]
    assert "SVM (the papers' protocol)" in done.out
    assert done.out.endswith("run        runs/Waves   next: stoker timehut embed runs/Waves embeddings.npy --data FILE\n")
    done = stoker("timehut", "embed", "runs/Waves", "e.npy", "--data", "Waves_TEST.tsv")
    assert (done.code, done.err, done.out) == (0, "", "12 series -> 16 values each\nwritten: e.npy\nnext: numpy.load('e.npy')\n")
    assert np.load("e.npy").shape == (12, 16)
    again = stoker("timehut", "embed", "runs/Waves", "e.npy", "--data", "Waves_TEST.tsv")
    assert (again.code, again.err) == (2, "stoker: e.npy already exists. Replace the file (--overwrite), or give another name.\n")
    assert stoker("train", "timehut", *data).code == 2
    resumed = stoker("train", "--resume", "runs/Waves", "--json")
    assert (resumed.code, json.loads(resumed.out)["step"]) == (0, 2)

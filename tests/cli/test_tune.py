from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.recipes.timehut.sets import write_tsv

import stoker
from stoker.cli.main import main
from stoker.tune.batch_sizes import _Measure

CONFIG = """\
data: {store: w.stoker, view: {name: windows, length: 8, horizon: 1}, batch_size: 32}
model: {name: linear}
train: {epochs: 2, device: cpu}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    waves = np.sin(np.arange(64) / 5 + np.arange(8)[:, None]).astype("f4")
    stoker.Store.from_arrays(x=list(waves)).save(tmp_path / "w.stoker")
    (tmp_path / "c.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_batch_size_is_found_and_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure(self: _Measure, size: int) -> tuple[float, int]:
        self.make_step()(self.make_batch(size))  # a step of the trainer works with a batch of any size
        return 1.0 / min(size, 16) * size, 1000

    monkeypatch.setattr(_Measure, "alone", measure)
    monkeypatch.setattr(_Measure, "rounds", lambda self, sizes: [[size / min(size, 16) for size in sizes]])
    main(["tune", "batch", "c.yaml", "--out", "tuned.yaml"])
    out, err = capsys.readouterr()
    assert "<- chosen" in out
    assert "batch 16: 16 samples/s" in err
    assert (
        "the effective batch changes from 32 to 16: the sqrt rule would scale the learning rate from 0.001 to 0.000707 (not changed)"
        in out
    )
    tuned = stoker.experiment.load("tuned.yaml")
    assert tuned.data.batch_size == 16
    assert tuned.optimizer.lr == 0.001
    main(["tune", "batch", "c.yaml", "--keep-effective-batch", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["size"] * found["grad_accum_steps"] == 32


def test_the_parameters_of_timehut_are_searched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, _ = write_tsv(folder)
    main(["tune", "search", "timehut", "--data", str(data), "--scenario", "amc", "--budget", "4", "--epochs", "2",
          "--json"])  # fmt: skip
    found = json.loads(capsys.readouterr().out)
    assert set(found["best"]["params"]) == {"amc_instance", "amc_temporal", "amc_margin"}
    assert found["complete"] + found["pruned"] == 4

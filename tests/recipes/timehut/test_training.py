"""A run from a file to a score: reproducible, resumed exactly, loaded again, refused where something is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.recipes.timehut.sets import SMALL, files

from stoker.errors import OptionError
from stoker_recipes.timehut import training
from stoker_recipes.timehut.data import for_training, read_series
from stoker_recipes.timehut.predicting import load_encoder
from stoker_recipes.timehut.training import new_population, train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "unit"
    data, test = files("UnitTest")
    said: list[str] = []
    done = train(data, test=test, folder=folder, say=lambda word, sentence: said.append(word), **SMALL)
    assert set(done.scores) == {"svm", "knn", "linear"}
    assert done.majority == 12 / 22
    assert said == ["series", "test", "classes", "scaling", "encoder"]
    return folder


def test_the_trainer_makes_the_updates_of_a_population(run: Path) -> None:
    encoder = load_encoder(run)
    assert encoder.scaler is not None
    data = read_series(files("UnitTest")[0])
    population = new_population(for_training(encoder.scaler(data.values)), encoder.settings)
    population.advance(population.num_updates)
    assert encoder.updates == population.updates == 12
    assert torch.equal(population.average_whole()[0], encoder.row)


@pytest.mark.promise("P29")
def test_the_same_seed_gives_the_same_score(run: Path, tmp_path: Path) -> None:
    data, test = files("UnitTest")
    done = train(data, test=test, folder=tmp_path / "again", **SMALL)
    assert json.loads((run / "score.json").read_bytes())["accuracy"] == done.scores
    assert torch.equal(load_encoder(run).row, done.encoder.row)
    other = train(data, test=test, folder=tmp_path / "other", **SMALL, seed=1)
    assert not torch.equal(load_encoder(run).row, other.encoder.row)  # negative control


@pytest.mark.promise("P29")
def test_a_run_that_stops_resumes_exactly(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, test = files("UnitTest")
    usual = training.CropBatches.__iter__

    def failing(self: training.CropBatches) -> Any:
        for batch in usual(self):
            if self.state_dict()["next"] == 8:
                raise KeyboardInterrupt
            yield batch

    monkeypatch.setattr(training.CropBatches, "__iter__", failing)
    with pytest.raises(KeyboardInterrupt):
        train(data, test=test, folder=tmp_path / "run", **SMALL)
    with pytest.raises(OptionError, match="its training has not finished"):
        load_encoder(tmp_path / "run")
    monkeypatch.undo()
    done = training.resume(tmp_path / "run")
    assert done.result.step == 12
    assert torch.equal(done.encoder.row, load_encoder(run).row)


def test_multivariate_ragged_series_are_trained_on(tmp_path: Path) -> None:
    data, test = files("JapaneseVowels")
    done = train(data, test=test, folder=tmp_path / "run", method="softclt", hidden=6, depth=4, width=12, updates=3)
    assert done.scores["svm"] > 0.3

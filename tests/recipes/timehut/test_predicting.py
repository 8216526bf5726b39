"""A trained encoder embeds and classifies new series; a damaged one is named."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.recipes.timehut.sets import SMALL, files, write_tsv

import stoker
from stoker.errors import ConfigError
from stoker_recipes.timehut.data import read_series
from stoker_recipes.timehut.predicting import load_encoder
from stoker_recipes.timehut.training import train


def test_a_run_predicts_and_embeds_longer_series(tmp_path: Path) -> None:
    data, test = files("UnitTest")
    run = tmp_path / "run"
    train(data, test=test, folder=run, **SMALL)
    table = stoker.load(run).predict(str(test))
    expected = json.loads((run / "score.json").read_bytes())["accuracy"]["svm"]
    labels = read_series(test).labels
    assert labels is not None
    assert np.mean([one == other for one, other in zip(table["prediction"].to_pylist(), labels, strict=True)]) == expected
    values = read_series(data).values
    found = load_encoder(run)(values)
    module = stoker.load(run).model
    assert np.abs(module(torch.from_numpy(values)).numpy() - found).max() < 1e-4
    assert load_encoder(run)(np.tile(values, (1, 3, 1))).shape == (20, 12)


def test_a_damaged_encoder_is_named(tmp_path: Path) -> None:
    data, _ = write_tsv(tmp_path)
    train(data, folder=tmp_path / "run", **{**SMALL, "epochs": 1})
    path = tmp_path / "run" / "encoder.safetensors"
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content[:100])
    with pytest.raises(ConfigError, match=r"encoder\.safetensors is damaged"):
        load_encoder(tmp_path / "run")

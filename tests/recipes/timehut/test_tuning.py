"""The objective of a search: a closed form that equals refitting, common random numbers, and a score that is not constant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.model_selection import train_test_split
from tests.recipes.timehut.sets import files, write_tsv

import stoker
from stoker.errors import OptionError
from stoker_recipes.timehut.data import fit_scaler, read_series
from stoker_recipes.timehut.evaluation import accuracy
from stoker_recipes.timehut.settings import make_settings
from stoker_recipes.timehut.tuning import REPEATS, RIDGE, SPACES, SearchObjective, _folds, margins, objective_of

SMALL: dict[str, Any] = {"hidden": 8, "depth": 4, "width": 16}


def draws(count: int) -> list[dict[str, float]]:
    """Configurations of the whole space."""
    rng = np.random.default_rng(1)
    return [{name: rng.uniform(low, high) for name, (_, low, high) in SPACES["combined"].items()} for _ in range(count)]


def objective(**options: Any) -> SearchObjective:
    data = read_series(files("UnitTest")[0])
    scaler = fit_scaler(data.values)
    assert scaler is not None
    assert data.labels is not None
    given: dict[str, Any] = {"settings": make_settings("timehut", **SMALL), "rungs": (3, 6), **options}
    return SearchObjective(values=scaler(data.values), labels=data.labels, **given)


@pytest.mark.promise("P29")
def test_the_closed_form_is_refitting_without_the_fold() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(17) % 3
    x = torch.from_numpy(rng.normal(size=(2, 17, 5)) + labels[:, None])
    y = torch.nn.functional.one_hot(torch.from_numpy(labels), 3).double() * 2 - 1
    for k in range(2):
        kernel = torch.exp(-torch.cdist(x[k], x[k]).square() / (5 * x[k].var(correction=0)))
        total = 0.0
        for repeat in range(REPEATS):
            for fold in _folds(labels, np.random.default_rng((0, repeat))):
                rest = np.setdiff1d(np.arange(17), fold)
                solved = torch.linalg.solve(kernel[rest][:, rest] + RIDGE * torch.eye(len(rest)), y[rest])
                for output, label in zip(kernel[fold][:, rest] @ solved, labels[fold], strict=True):
                    others = [float(output[c]) for c in range(3) if c != label]
                    total += (float(output[label]) - max(others)) / 2
        assert float(margins(x, labels)[k]) == pytest.approx(total / (REPEATS * 17), rel=1e-9)


@pytest.mark.promise("P29")
def test_the_margin_separates_configurations_where_the_accuracy_is_constant() -> None:
    found = objective(settings=make_settings("timehut", width=64, hidden=16, depth=4))
    group = found.start(draws(10), seeds=[5] * 10)
    scores = group.advance(3)
    assert len({round(score, 12) for score in scores}) == 10
    train, test = train_test_split(np.arange(len(found.labels)), test_size=0.3, random_state=42, stratify=found.labels)
    accuracies = {
        accuracy(z[train], found.labels[train], z[test], found.labels[test]) for z in group.population.encode(found.values)
    }
    assert len(accuracies) == 1  # the authors' criterion


def test_a_group_is_halved_and_continues() -> None:
    found = objective()
    configs = draws(4)
    group, alone = found.start(configs, seeds=[1, 2, 3, 4]), found.start(configs[2:3], seeds=[3])
    group.advance(3)
    group.keep([2, 0])
    assert group.advance(6)[0] == pytest.approx(alone.advance(6)[0], abs=1e-5)


def test_an_objective_of_a_file_has_its_series_scaled_and_rungs_of_its_length(tmp_path: Path) -> None:
    data, _ = write_tsv(tmp_path, num=16)
    found = objective_of(data, epochs=40, device="cpu")
    assert list(found.rungs) == [5, 20, 80]  # 2 updates per epoch
    assert found.values.shape == (16, 16, 1)
    assert abs(float(found.values.mean())) < 1e-6


def test_a_file_without_labels_has_no_objective(tmp_path: Path) -> None:
    stoker.Store.from_arrays(x=[np.ones(8, "f4")] * 4).save(tmp_path / "s.stoker")
    with pytest.raises(OptionError, match=r"s.stoker has no labels, which the score of a search needs"):
        objective_of(tmp_path / "s.stoker")

"""Series from files and arrays: shapes, labels, scaling, padding, sections, errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.recipes.timehut.sets import files, write_tsv

from stoker.errors import OptionError, SourceError
from stoker_recipes.timehut.data import as_series, fit_scaler, for_training, read_series


def test_sets_of_uea_are_read_with_labels() -> None:
    for name, shape in (("UnitTest", (20, 24, 1)), ("BasicMotions", (40, 100, 6)), ("JapaneseVowels", (270, 26, 12))):
        found = read_series(files(name)[0])
        assert (found.name, found.values.shape) == (name, shape)
        assert found.labels is not None
        assert len(found.labels) == shape[0]
        assert bool(np.isnan(found.values).any()) == (name == "JapaneseVowels")  # series of different lengths


def test_sets_of_ucr_are_read(tmp_path: Path) -> None:
    found = read_series(write_tsv(tmp_path)[0])
    assert found.values.shape == (12, 16, 1)
    assert found.labels is not None
    assert found.labels.tolist() == ["1", "2"] * 6
    with pytest.raises(SourceError):
        read_series(tmp_path / "missing.tsv")


def test_series_that_are_z_normalised_stay_as_they_are() -> None:
    raw = np.random.default_rng(0).normal(5, 3, size=(10, 30, 2)).astype(np.float32)
    normal = (raw - raw.mean(1, keepdims=True)) / raw.std(1, keepdims=True)
    assert fit_scaler(normal) is None
    assert fit_scaler(raw, normalize="none") is None
    scaler = fit_scaler(raw)
    assert scaler is not None
    assert np.allclose(scaler(raw).mean((0, 1)), 0, atol=1e-5)
    assert np.allclose(scaler(raw).std((0, 1)), 1, atol=1e-5)
    with pytest.raises(OptionError, match="normalize is 'zscore'"):
        fit_scaler(raw, normalize="zscore")


def test_arrays_of_users_become_series() -> None:
    assert as_series(np.zeros((3, 8))).shape == (3, 8, 1)
    assert as_series(np.zeros((3, 2, 8))).shape == (3, 8, 2)  # aeon's order
    ragged = as_series([np.zeros((2, 5)), np.ones((2, 8))])
    assert ragged.shape == (2, 8, 2)
    assert np.isnan(ragged[0, 5:]).all()
    for wrong in (np.zeros(3), [np.zeros((1, 3)), np.zeros((2, 3))], np.full((2, 3), np.inf)):
        with pytest.raises(OptionError, match=r"^X "):
            as_series(wrong)


def test_long_series_are_cut_into_sections() -> None:
    values = np.arange(20, dtype=np.float32).reshape(2, 10, 1)
    found = for_training(values, max_length=3)
    assert found.shape == (6, 4, 1)
    assert sorted(found[~np.isnan(found)].tolist()) == list(range(20))
    with pytest.raises(OptionError, match="no series of at least 2 steps"):
        for_training(np.full((2, 5, 1), np.nan))

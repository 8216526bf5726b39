"""Measures of generated events: small for two samples of a law, large where events, subjects or copies are spoilt."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from benchmarks.known_tables import make_bursts, make_shop
from benchmarks.tabular_measures import Column, compare_records, compare_sequences, find_bins, quantile_bins, read

LIMIT = 0.15
"""Two samples of 200 subjects are nearer than this by every measure of sequences."""


def measured(real: pa.Table, synthetic: pd.DataFrame | pa.Table) -> dict[str, float]:
    table = synthetic if isinstance(synthetic, pa.Table) else pa.Table.from_pandas(synthetic, preserve_index=False)
    return compare_sequences(*read(real, table, "user_id", None, None))


@pytest.mark.parametrize("make", [make_bursts, lambda count, seed: make_shop(count, seed=seed)[1]])
def test_two_samples_are_close_and_spoilt_ones_are_not(make: object) -> None:
    real, other = (make(200, seed=seed) for seed in range(2))  # type: ignore[operator]
    same = measured(real, other)
    assert {name: value for name, value in same.items() if value > LIMIT} == {}
    frame = other.to_pandas()
    shuffled = frame.sample(frac=1, random_state=0).sort_values("user_id", kind="stable")
    assert measured(real, shuffled)["gaps"] > 0.3
    place = frame.groupby("user_id").cumcount().to_numpy()
    ordered, mixed = np.argsort(place, kind="stable"), np.lexsort((np.random.default_rng(0).random(len(frame)), place))
    permuted = frame.copy()
    permuted["amount"] = permuted["amount"].to_numpy(copy=True)
    permuted.loc[ordered, "amount"] = frame.loc[mixed, "amount"].to_numpy()
    assert measured(real, permuted)["subjects"] > same["subjects"]
    assert measured(real, permuted)["lengths"] == same["lengths"]


def test_copies_are_nearer_than_fresh_ones_and_a_classifier_separates_spoilt_ones() -> None:
    real, fresh = (make_bursts(100, seed=seed) for seed in range(2))
    spoilt = fresh.set_column(2, "amount", pc.add(fresh["amount"], 3.0))
    found = [compare_records(*read(real, one, "user_id", None, None), 0, is_sequence=True) for one in (real, fresh, spoilt)]
    assert found[1]["closest sequences"] < 0.6 < 0.95 < found[0]["closest sequences"]
    assert found[1]["classifier of sequences"] < 0.7 < 0.9 < found[2]["classifier of sequences"]


def test_bins_of_numbers_and_strings() -> None:
    spiky = Column(kind="number", data=np.append(np.zeros(70), np.arange(30) / 7))
    bins = quantile_bins(spiky, 10)
    assert bins.apply(Column(kind="number", data=np.array([0.0, 9.0, np.nan]))).tolist() == [0, bins.size - 2, bins.size - 1]
    few = find_bins(Column(kind="number", data=np.array([1.0, 2.0, np.nan, 2.0])), 10)
    assert few.apply(Column(kind="number", data=np.array([0.0, 1.0, 2.0, np.nan]))).tolist() == [0, 0, 1, 2]
    texts, codes = ("_RARE_", "a", "b", "c"), np.repeat([0, 1, 2, 3, -1], [9, 5, 8, 4, 3])
    words = find_bins(Column(kind="category", data=codes, texts=texts), 10)
    assert words.apply(Column(kind="category", data=np.array([1, 2, 3, 0, -1]), texts=texts)).tolist() == [0, 1, 3, 4, 5]

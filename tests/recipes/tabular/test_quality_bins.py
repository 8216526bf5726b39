"""Bins: edges and categories against slow, obvious versions in pandas."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from stoker.recipes.tabular.quality_bins import EMPTY, NA, OTHER, RARE, find_bins, is_text, quantile_bins, text_lengths
from stoker.recipes.tabular.quality_tables import ColumnValues


def numbers(data: object) -> ColumnValues:
    return ColumnValues(name="x", kind="number", data=np.asarray(data, dtype=np.float64))


def strings(data: list[str | None]) -> ColumnValues:
    texts = sorted({one for one in data if one is not None})
    return ColumnValues(
        name="x", kind="category", data=np.array([-1 if one is None else texts.index(one) for one in data]), texts=texts
    )


def test_numbers_are_cut_like_by_pandas(rng: np.random.Generator) -> None:
    values = np.round(rng.lognormal(2, 1, 500), 2)
    values[::7] = np.nan
    bins = find_bins(numbers(values), 10)
    assert bins.edges is not None
    expected = pd.cut(pd.Series(values), [*bins.edges[:-1], bins.edges[-1] + 1], labels=False, right=False).fillna(
        len(bins.edges) - 1
    )
    assert (bins.apply(numbers(values)) == expected.to_numpy()).all()
    counts = np.bincount(bins.apply(numbers(values)), minlength=bins.size)
    assert counts[-1] == np.isnan(values).sum()
    assert counts[:-1].min() > 20  # about equal shares


def test_few_values_are_bins_of_their_own_and_others_are_clipped() -> None:
    bins = find_bins(numbers([3, 1, 1, 7]), 10)
    assert bins.apply(numbers([1, 2, 3, 6.9, 7, 100, -5, np.nan])).tolist() == [0, 0, 1, 1, 2, 2, 0, 3]


def test_edges_have_the_fewest_decimals_that_keep_them_apart(rng: np.random.Generator) -> None:
    bins = find_bins(numbers(rng.normal(0, 100, 2000)), 10)
    assert bins.edges is not None
    assert (bins.edges[:-1] % 1 == 0).all()


def test_times_and_columns_without_values() -> None:
    times = ColumnValues(name="t", kind="time", data=np.arange(0, 10**15, 10**12))
    assert find_bins(times, 10).size == 11  # ten, and that of missing values
    one = ColumnValues(name="t", kind="time", data=np.full(5, 10**18))
    assert find_bins(one, 10).apply(one).tolist() == [0] * 5
    none = numbers([np.nan] * 4)
    assert find_bins(none, 10).apply(none).tolist() == [1] * 4


def test_frequent_strings_stay() -> None:
    given = ["b"] * 9 + ["a"] * 7 + ["rare"] * 4 + [None] * 6 + [""] * 5 + ["c"] * 5
    bins = find_bins(strings(given), 3)  # type: ignore[arg-type]
    assert bins.labels == ["a", "b", EMPTY, OTHER, RARE, NA]  # the third most frequent is a missing value
    found = [bins.labels[i] for i in bins.apply(strings(given))]  # type: ignore[arg-type]
    assert found == ["b"] * 9 + ["a"] * 7 + [OTHER] * 4 + [NA] * 6 + [EMPTY] * 5 + [OTHER] * 5


def test_strings_in_fewer_than_five_rows_have_no_bin() -> None:
    bins = find_bins(strings(["a"] * 5 + ["b"] * 4), 10)
    assert bins.labels == ["a", EMPTY, OTHER, RARE, NA]


def test_strings_that_look_like_special_bins_are_in_them() -> None:
    given = [NA] * 6 + [None] * 6 + [RARE] * 6 + [EMPTY] * 6 + [""] * 6
    bins = find_bins(strings(given), 10)  # type: ignore[arg-type]
    found = [bins.labels[i] for i in bins.apply(strings(given))]  # type: ignore[arg-type]
    assert found == [NA] * 12 + [RARE] * 6 + [EMPTY] * 12


def test_fine_bins_keep_spikes_apart(rng: np.random.Generator) -> None:
    values = np.concatenate([np.zeros(700), rng.normal(size=300)])
    bins = quantile_bins(numbers(values), 50)
    cells = bins.apply(numbers(values))
    assert len(set(cells[:700])) == 1
    assert (cells[700:] != cells[0]).all()


def test_text_is_compared_by_its_length() -> None:
    text = strings([f"text {i}" for i in range(100)])
    assert is_text(text)
    assert not is_text(strings(["a", "b"] * 50))
    assert text_lengths(text).data[[5, 50]].tolist() == pytest.approx([6, 7])

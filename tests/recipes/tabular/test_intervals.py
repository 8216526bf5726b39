"""The kernels over numbers do what plain NumPy does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker_recipes.tabular.encodings import Subjects
from stoker_recipes.tabular.intervals import find_intervals, split_sorted

RNG = np.random.default_rng(0)
COLUMNS = {
    "normal": RNG.normal(size=3000),
    "prices": RNG.choice([0.99, 1.5, 4.99, 19.99, 20.0], 3000) + RNG.choice([0.0, 0.0, 1e-3], 3000),
    "amounts": np.round(RNG.lognormal(3, 1, 3000), 2),
    "heavy tail": RNG.standard_cauchy(3000) ** 3,
    "one value": np.zeros(50),
    "integers": RNG.integers(-50, 50, 3000),
    "far integers": RNG.integers(-(2**62), 2**62, 3000) * 2,
}


def plain_split(own: Any, most: int, least: int, tail: float, refused: Any) -> tuple[Any, ...]:
    """As `split_sorted`, in whole arrays."""
    begins = np.flatnonzero(np.append(True, own[1:] != own[:-1]))
    distinct, counts = own[begins], np.diff(np.append(begins, len(own)))
    below = begins / len(own)
    share = np.maximum(np.minimum(tail * np.minimum(below, 1 - below), 1 / most), least / len(own))
    is_own = (counts >= share * len(own)) & ~np.isin(distinct, refused)
    passed = np.floor(np.cumsum(counts / len(own) / share) - counts / len(own) / share)
    firsts = np.flatnonzero(np.append(True, (passed[1:] != passed[:-1]) | is_own[1:] | is_own[:-1]))
    lasts = np.append(firsts[1:], len(distinct)) - 1
    return distinct[firsts], distinct[lasts], np.add.reduceat(counts, firsts), is_own[firsts]


@pytest.mark.promise("P30")
@pytest.mark.parametrize("name", COLUMNS)
def test_intervals_are_found_as_by_a_search(name: str) -> None:
    values = COLUMNS[name]
    for count in (1, 2, 3, 50, 900):
        highs = np.unique(values[:count])
        expected = np.minimum(np.searchsorted(highs, values), len(highs) - 1)
        assert (find_intervals(highs, values) == expected).all()
        assert (find_intervals(highs, values[::3]) == expected[::3]).all()
    assert len(find_intervals(values[:0], values[:0])) == 0


@pytest.mark.promise("P30")
@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize(("most", "least"), [(1024, 8), (16, 8), (10, 1), (1024, 1)])
def test_values_are_split_as_by_whole_arrays(name: str, most: int, least: int) -> None:
    own = np.sort(COLUMNS[name])
    options: dict[str, Any] = {"most": most, "least": least, "tail": 0.1}
    lows, _, _, is_own = plain_split(own, refused=own[:0], **options)
    for refused in (own[:0], lows[is_own][::2]):
        found, expected = split_sorted(own, refused=refused, **options), plain_split(own, refused=refused, **options)
        for one, two in zip(found, expected, strict=True):
            assert (one == two).all()


def test_subjects_are_counted_and_bounded_as_by_sets() -> None:
    starts = np.array([0, 3, 4, 10, 40, 41, 60, 61, 80, 99, 120, 150, 180])
    codes, data = RNG.integers(-1, 5, 200), RNG.normal(size=200)
    valid = RNG.random(200) < 0.7
    subjects = Subjects(starts=starts, num_rows=200, least=2)
    rows = np.split(np.arange(200), starts[1:])
    expected = [sum(code in codes[own] for own in rows) for code in range(5)]
    assert subjects.count(codes, 5).tolist() == expected
    lows = sorted(data[own][valid[own]].min() for own in rows if valid[own].any())
    highs = sorted(data[own][valid[own]].max() for own in rows if valid[own].any())
    assert subjects.bounds(data, valid) == (min(lows[2], highs[-3]), max(lows[2], highs[-3]))
    assert subjects.bounds(data, np.zeros(200, bool)) is None

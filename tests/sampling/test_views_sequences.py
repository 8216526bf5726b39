"""Sequences: whole series, cut at one end, and rows as wide as their bucket."""

from __future__ import annotations

import numpy as np
from tests.sampling import twins
from tests.sampling.test_views_windows import as_tuples

from stoker.sampling.views import Sequences

LENGTHS = [0, 1, 6, 7, 8, 0, 40]


def test_any_order_can_be_asked_for() -> None:
    samples = Sequences(7).over(twins.ragged(LENGTHS))
    assert as_tuples(samples.locate(np.array([6, 0, 6]))) == [(6, 22, 7), (0, 0, 0), (6, 22, 7)]


def test_rows_are_as_wide_as_the_longest_or_its_bucket() -> None:
    assert [Sequences(9).width(longest) for longest in (0, 1, 4, 9)] == [1, 1, 4, 9]
    view = Sequences(9, buckets=(9, 2, 4, 4))
    assert view.buckets == (2, 4, 9)
    assert [view.width(longest) for longest in (0, 1, 2, 3, 4, 5, 9)] == [2, 2, 2, 4, 4, 9, 9]
    assert Sequences(9, buckets=np.array([3, 9])).buckets == (3, 9)  # type: ignore[arg-type]
    assert repr(Sequences(np.int64(9), buckets=[np.int64(9)])) == repr(Sequences(9, buckets=(9,)))  # type: ignore[arg-type]

"""Widths and sub-columns of models are those of TabularARGN."""

from __future__ import annotations

import pytest

from stoker_recipes.tabular.layout import embedding_width, position_sizes


@pytest.mark.parametrize(
    ("classes", "widths"), [(10, (10, 10, 10)), (100, (10, 12, 20)), (1000, (10, 18, 40)), (10_000, (10, 30, 84))]
)
def test_widths_are_those_of_the_sizes(classes: int, widths: tuple[int, ...]) -> None:
    assert tuple(embedding_width(classes, size) for size in ("s", "m", "l")) == widths


def test_long_sequences_are_numbered_by_digits() -> None:
    assert position_sizes(99) == {"sidx_cat": 100, "slen_cat": 100, "ridx_cat": 100}
    assert list(position_sizes(345).items())[:4] == [("sidx_E2", 4), ("sidx_E1", 10), ("sidx_E0", 10), ("slen_E2", 4)]

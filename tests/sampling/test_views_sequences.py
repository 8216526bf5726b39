"""Sequences: whole series, cut at one end, and rows as wide as their bucket."""

from __future__ import annotations

import numpy as np
import pytest
from tests.sampling import twins
from tests.sampling.test_views_windows import as_tuples, listed

from stoker.errors import OptionError
from stoker.sampling.views import Sequences

LENGTHS = [0, 1, 6, 7, 8, 0, 40]


def list_sequences(view: Sequences, lengths: list[int]) -> list[twins.Sample]:
    """Every series, one after the other."""
    samples, first = [], 0
    for series, num_steps in enumerate(lengths):
        count = min(num_steps, view.max_length)
        samples.append((series, first if view.keep == "first" else first + num_steps - count, count))
        first += num_steps
    return samples


@pytest.mark.parametrize("keep", ["first", "last"])
@pytest.mark.parametrize("max_length", [1, 6, 7, 8, 1000])
def test_they_equal_the_twin(keep: str, max_length: int) -> None:
    view = Sequences(max_length, keep=keep)  # type: ignore[arg-type]
    samples = view.over(twins.ragged(LENGTHS))
    assert listed(samples) == list_sequences(view, LENGTHS)
    assert (samples.num_samples, samples.num_series, samples.row) == (len(LENGTHS), len(LENGTHS), max_length)
    assert samples.first_samples() is None
    for length in (0, 5, 7, 9):
        assert listed(view.over(twins.uniform(length, 4))) == list_sequences(view, [length] * 4)


def test_any_order_can_be_asked_for() -> None:
    samples = Sequences(7).over(twins.ragged(LENGTHS))
    assert as_tuples(samples.locate(np.array([6, 0, 6]))) == [(6, 22, 7), (0, 0, 0), (6, 22, 7)]


def test_what_is_cut_off_is_said() -> None:
    assert Sequences(5, keep="last").over(twins.uniform(9, 2)).notes() == ["series of 9 steps are cut to their last 5."]
    assert Sequences(9).over(twins.uniform(9, 2)).notes() == []
    assert Sequences(5).over(twins.ragged(LENGTHS)).notes() == []


def test_rows_are_as_wide_as_the_longest_or_its_bucket() -> None:
    assert [Sequences(9).width(longest) for longest in (0, 1, 4, 9)] == [1, 1, 4, 9]
    view = Sequences(9, buckets=(9, 2, 4, 4))
    assert view.buckets == (2, 4, 9)
    assert [view.width(longest) for longest in (0, 1, 2, 3, 4, 5, 9)] == [2, 2, 2, 4, 4, 9, 9]
    assert Sequences(9, buckets=np.array([3, 9])).buckets == (3, 9)  # type: ignore[arg-type]
    assert repr(Sequences(np.int64(9), buckets=[np.int64(9)])) == repr(Sequences(9, buckets=(9,)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_length": 0}, "max_length is 0; expected an integer from 1."),
        ({"max_length": 2.5}, "max_length is 2.5; expected an integer from 1."),
        ({"max_length": True}, "max_length is True; expected an integer from 1."),
        ({"layout": "ragged"}, "layout is 'ragged'; expected 'padded' or 'packed'."),
        ({"keep": "middle"}, "keep is 'middle'; expected 'first', 'last' or 'random'."),
        ({"layout": "packed", "buckets": (9,)}, "buckets are for layout='padded'; a packed batch has no rows to widen."),
        *(
            ({"buckets": buckets}, f"buckets are {buckets!r}; expected lengths from 1, the last being max_length.")
            for buckets in [(), (4,), (4, 10), (0, 9), (2.5, 9), ("a", 9), 9, "9"]
        ),
    ],
)
def test_bad_options_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError) as caught:
        Sequences(**{"max_length": 9, **options})  # type: ignore[arg-type]
    assert str(caught.value) == f"Sequences: {message}"

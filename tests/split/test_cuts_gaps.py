"""Splits of views that break at gaps: no leak, and nothing is excluded that does not reach over a cut."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, given, settings
from tests.harness import num_examples
from tests.harness.flat_feed import flat_feed
from tests.split.stores import with_time

from stoker import Segments, Store, Windows
from stoker.errors import LeakError, OptionError
from stoker.feed.columns import lengths_of
from stoker.split import SeriesScaler, Split, chronological, grouped
from stoker.split import cuts as cuts_module

pytestmark = pytest.mark.promise("P9")

STEPS = st.lists(st.lists(st.sampled_from([1, 1, 1, 1, 3]), min_size=1, max_size=25), min_size=1, max_size=4)
VIEWS = [
    Windows(3, max_gap=1),
    Windows(2, stride=2, horizon=1, max_gap=1),
    Windows(3, shift=1, tail="drop", max_gap=1),
    Segments(3, max_gap=1),
]


def make(steps: list[list[int]]) -> Store:
    return with_time([np.cumsum(one).tolist() for one in steps])


def steps_of(store: Store, view: Any) -> list[tuple[int, set[int]]]:
    """For each sample its series, and the steps that it holds in the flat column."""
    samples = view.over(lengths_of(store, view))
    found = samples.locate(np.arange(samples.num_samples))
    rows = zip(found.series.tolist(), found.starts.tolist(), found.counts.tolist(), strict=True)
    return [(series, set(range(start, start + count))) for series, start, count in rows]


def split_or_skip(store: Store, view: Any, **options: Any) -> Split:
    try:
        return chronological(store, view, **options)
    except OptionError:
        assume(False)
        raise


@settings(deadline=None, max_examples=num_examples(60))
@given(STEPS, st.sampled_from(VIEWS), st.integers(1, 25))
def test_nothing_is_excluded_that_lies_on_one_side(steps: list[list[int]], view: Any, moment: int) -> None:
    store = make(steps)
    split = split_or_skip(store, view, boundaries=[moment])
    times = store.column("t")
    for number, (_, held) in enumerate(steps_of(store, view)):
        at = times[sorted(held)]
        assert (number in numbers(split.train)) == bool((at < moment).all())
        assert (number in numbers(split.valid)) == bool((at >= moment).all())


@settings(deadline=None, max_examples=num_examples(60))
@given(STEPS, st.sampled_from(VIEWS), st.integers(1, 25), st.integers(0, 5), st.integers(0, 4))
def test_no_step_is_in_two_subsets_also_with_warm_up_and_longer_horizons(
    steps: list[list[int]], view: Any, moment: int, warm_up: int, more: int
) -> None:
    """`chronological` checks what it returns, and raises LeakError otherwise."""
    windows = view.windows if isinstance(view, Segments) else view
    store = make(steps)
    split_or_skip(store, view, boundaries=[moment], warm_up=warm_up, horizon=windows.span - windows.length + more)


def test_negative_control_cuts_that_know_no_warm_up_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that begins right behind a cut reaches back over the gap."""
    store, view = make([[1] * 10 + [3] + [1] * 10]), Windows(3, max_gap=1)
    chronological(store, view, boundaries=[12], warm_up=2)
    whole = cuts_module._cut_runs

    def careless(*given: Any) -> Any:
        margins = given[2]
        short = cuts_module.Margins(**{**vars(margins), "embargo": margins.length - 1})
        return whole(*given[:2], short, *given[3:])

    monkeypatch.setattr(cuts_module, "_cut_runs", careless)
    with pytest.raises(LeakError, match="is in two subsets"):
        chronological(store, view, boundaries=[12], warm_up=2)


def numbers(subset: Any) -> set[int]:
    return set(subset.runs.resolve(np.arange(len(subset))).tolist())


def test_groups_scalers_and_feeds_keep_the_numbers_of_series() -> None:
    store = make([[1, 1, 1, 5, 1, 1, 1], [1] * 7, [1, 5, 1, 1, 5, 1, 1]] * 8)
    view = Windows(3, tail="drop", max_gap=1)
    split = grouped(store, view, fractions=(0.5, 0.5))
    scaler = SeriesScaler.fit(store, split.train, columns=["x"], unseen="global")
    bounds = store.offsets
    held: dict[int, set[int]] = {}
    samples = steps_of(store, view)
    for number in numbers(split.train):
        held.setdefault(samples[number][0], set()).update(samples[number][1])
    x = store.column("x")
    for series, some in held.items():
        np.testing.assert_allclose(scaler.scales("x").centers[series, 0], x[sorted(some)].mean())
        assert bounds[series] <= min(some) <= max(some) < bounds[series + 1]
    seen = [
        int(one)
        for batch in flat_feed(store, view, subset=split.train, batch_size=4, return_series=True)
        for one in batch["series"]
    ]
    assert {one for one in seen if one >= 0} == held.keys()

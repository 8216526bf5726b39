"""Chronological splits: the closed form keeps, purges and embargoes exactly what a loop over all samples does."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.harness import num_examples, tiny_store
from tests.harness.flat_feed import flat_feed
from tests.split import twin
from tests.split.stores import plain, timed

import stoker
from stoker import Segments, Sequences, Windows
from stoker.split import chronological

pytestmark = pytest.mark.promise("P16")

PARTS = {"train": [(0, 1)], "valid": [(1, 2)], "test": [(2, 3)]}

# A long series among them has samples in every subset: a subset without any would be refused.
lengths = st.tuples(st.lists(st.integers(0, 60), max_size=3), st.lists(st.integers(0, 60), max_size=3)).map(
    lambda around: [*around[0], 300, *around[1]]
)
views: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        Windows, st.integers(1, 9), stride=st.integers(1, 12), horizon=st.integers(0, 5), tail=st.sampled_from(["keep", "drop"])
    ),
    st.builds(Windows, st.integers(1, 9), stride=st.integers(1, 12), shift=st.integers(0, 3)),
    st.builds(Segments, st.integers(1, 9), shift=st.integers(0, 2)),
    st.just(Windows(5, shift=1, tail="drop")),
)
reaches = st.tuples(st.integers(0, 6), st.integers(0, 7), st.none() | st.integers(0, 6))
"""Horizon beyond that of the view, warm-up, and embargo beyond the least."""


def options_of(view: Any, margins: tuple[int, int, int | None]) -> dict[str, Any]:
    windows = view.windows if isinstance(view, Segments) else view
    beyond, warm_up, more = margins
    embargo = None if more is None else windows.length - 1 + warm_up + more
    return {"horizon": windows.span - windows.length + beyond, "warm_up": warm_up, "embargo": embargo}


def check_against_twin(store: Any, view: Any, cuts: Any, split: Any, options: dict[str, Any]) -> None:
    expected = twin.split_samples(store, view, cuts, PARTS, **options)
    assert twin.numbers_of(split) == expected.subsets
    assert (split.excluded.purged, split.excluded.embargoed) == (expected.purged, expected.embargoed)
    margins = {"horizon": options["horizon"], "warm_up": options["warm_up"]}
    assert not twin.shared_steps(twin.steps_of(split, store, view, **margins))


@settings(max_examples=num_examples(150))
@given(lengths=lengths, view=views, margins=reaches)
def test_cuts_at_fractions_of_each_series_are_those_of_a_loop(lengths: list[int], view: Any, margins: Any) -> None:
    store, options = plain(lengths), options_of(view, margins)
    split = chronological(store, view, fractions=(0.5, 0.25, 0.25), **options)
    cuts = [[0, length // 2, length * 3 // 4, length] for length in lengths]
    check_against_twin(store, view, cuts, split, options)


some_times = st.lists(st.integers(-150, 150), max_size=40, unique=True).map(sorted)
times = st.tuples(st.lists(some_times, max_size=3), st.lists(some_times, max_size=3)).map(
    lambda around: [*around[0], list(range(-150, 150)), *around[1]]
)


@settings(max_examples=num_examples(150))
@given(times=times, view=views, margins=reaches, boundaries=st.tuples(st.integers(-90, -25), st.integers(25, 90)))
def test_cuts_at_times_are_those_of_a_loop(times: list[list[int]], view: Any, margins: Any, boundaries: tuple[int, int]) -> None:
    store, options = timed(times), options_of(view, margins)
    split = chronological(store, view, boundaries=boundaries, time="t", **options)
    check_against_twin(store, view, twin.cut_at_times(times, boundaries), split, options)


@settings(max_examples=num_examples(150))
@given(times=times, view=views)
def test_fractions_of_all_steps_cut_at_the_times_that_have_them_before(times: list[list[int]], view: Any) -> None:
    store, options = timed(times), options_of(view, (0, 0, None))
    split = chronological(store, view, fractions=(0.5, 0.25, 0.25), time="t", **options)
    moments = [twin.moment_of(times, 0.5), twin.moment_of(times, 0.75)]
    check_against_twin(store, view, twin.cut_at_times(times, moments), split, options)
    subsets = twin.steps_of(split, store, view)
    latest = {name: [times[series][step] for series, step in steps] for name, steps in subsets.items()}
    assert max(latest["train"]) < moments[0] <= min(latest["valid"]), "also across series, train is before valid"
    assert max(latest["valid"]) < moments[1] <= min(latest["test"])


@settings(max_examples=num_examples(60))
@given(times=st.lists(some_times, max_size=5), boundaries=st.tuples(st.integers(-90, -1), st.integers(1, 90)))
def test_whole_series_are_kept_where_they_lie_between_boundaries(times: list[list[int]], boundaries: tuple[int, int]) -> None:
    low, high = boundaries
    times = [*times, [-200, -150], [low, high - 1], [high, 200]]
    split = chronological(timed(times), Sequences(7), boundaries=[low, high], time="t")
    expected: dict[str, list[int]] = {"train": [], "valid": [], "test": []}
    for number, series in enumerate(times):
        homes = {"train" if one < low else "valid" if one < high else "test" for one in series} or {"train"}
        if len(homes) == 1:
            expected[homes.pop()].append(number)
    assert twin.numbers_of(split) == expected
    assert split.excluded.embargoed == len(times) - sum(map(len, expected.values()))


def test_the_numbers_of_the_manual() -> None:
    """Windows of 4 with a target of 2 over 40 steps, cut at 20: windows end before 18, and begin from 20 on."""
    split = chronological(plain([40]), Windows(4, horizon=2, tail="drop"), fractions=(0.5, 0.5))
    assert twin.numbers_of(split) == {"train": list(range(15)), "valid": list(range(20, 35))}
    assert (split.excluded.purged, split.excluded.embargoed) == (2, 3)
    split = chronological(plain([40]), Windows(4, horizon=2, tail="drop"), fractions=(0.5, 0.5), warm_up=3)
    assert twin.numbers_of(split)["valid"][0] == 23
    split = chronological(plain([40]), Windows(4, horizon=2, tail="drop"), fractions=(0.5, 0.5), embargo=10, horizon=6)
    assert twin.numbers_of(split) == {"train": list(range(11)), "valid": list(range(27, 35))}


def test_ten_billion_windows_cost_two_numbers(tmp_path: Path) -> None:
    size = 10**10
    values = np.memmap(tmp_path / "sparse", dtype=np.int8, mode="w+", shape=size)  # takes no space on the disk
    schema = stoker.Store.from_arrays(x=np.zeros(1, dtype=np.int8)).schema
    store = stoker.Store(schema, {"x": values}, num_series=1, length=size, offsets=None, name="<vast>")
    split = chronological(store, Windows(100, horizon=10), warm_up=50)
    assert len(split.train) == 7 * 10**9 - 109
    assert all(len(subset.runs.firsts) == 1 for subset in split)
    feed = flat_feed(store, Windows(100, horizon=10), subset=split.test, batch_size=3, order=stoker.Shuffle(), return_index=True)
    assert feed.samples.locate(np.array([0, feed.num_samples - 1])).starts.tolist() == [85 * 10**8 + 50, size - 110]
    assert next(iter(feed))["x"].shape == (3, 100)


def test_boundaries_are_read_as_times(tmp_path: Path) -> None:
    tiny_store(tmp_path / "store", lengths=(30, 20), columns=("price", "when", "symbol"))
    store = stoker.open(tmp_path / "store")
    unit = (store.schema["when"].unit or "").split(",")[0]
    whole = int(store.column("when")[20])
    moment = np.datetime64(whole, unit)
    exact = moment.astype("datetime64[us]").item()
    expected = twin.numbers_of(chronological(store, Windows(3), boundaries=[whole]))
    for written in (moment, exact, exact.isoformat(), exact.replace(tzinfo=UTC), exact.isoformat() + "+00:00"):
        assert twin.numbers_of(chronological(store, Windows(3), boundaries=[written])) == expected
    assert str(moment) in str(chronological(store, Windows(3), boundaries=[whole]))


def test_a_subset_without_room_for_a_window_names_the_steps_and_the_remedy() -> None:
    """200 steps per series, windows of 48 and 12 more, a fifth to validate: what a newcomer tries first."""
    store, view = stoker.Store.from_arrays(x=[np.arange(200.0)] * 3), Windows(48, horizon=12)
    with pytest.raises(stoker.errors.OptionError, match=r"40 of the 200 steps .* needs 60 steps\. With overlap='inputs'"):
        stoker.split.chronological(store, view, fractions=(0.8, 0.2))
    assert len(stoker.split.chronological(store, view, fractions=(0.8, 0.2), overlap="inputs").valid) > 0
    with pytest.raises(stoker.errors.OptionError) as far:  # control: where a sample would fit, something else is the reason
        stoker.split.chronological(store, view, fractions=(0.6, 0.4), embargo=190)
    assert "overlap" not in str(far.value)

"""Chronological splits: the closed form keeps, purges and embargoes exactly what a loop over all samples does."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tests.harness import num_examples, tiny_store
from tests.split import twin
from tests.split.stores import plain, timed

import stoker
from stoker import Segments, Sequences, Windows
from stoker.errors import LeakError, OptionError, TimeOrderError
from stoker.split import chronological

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
    st.just(Windows(5, compat="time-moe")),
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
def test_by_fractions_of_each_series(lengths: list[int], view: Any, margins: Any) -> None:
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
def test_at_times(times: list[list[int]], view: Any, margins: Any, boundaries: tuple[int, int]) -> None:
    store, options = timed(times), options_of(view, margins)
    split = chronological(store, view, boundaries=boundaries, time="t", **options)
    check_against_twin(store, view, twin.cut_at_times(times, boundaries), split, options)


@settings(max_examples=num_examples(150))
@given(times=times, view=views)
def test_at_times_that_have_fractions_of_all_steps_before_them(times: list[list[int]], view: Any) -> None:
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
    feed = stoker.Feed(store, Windows(100, horizon=10), subset=split.test, batch_size=3, order=stoker.Shuffle(), return_index=True)
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


def test_what_it_says() -> None:
    split = chronological(plain([100, 100]), Windows(8, horizon=4, tail="drop"), fractions=(0.6, 0.3))
    assert str(split).splitlines() == [
        "chronological split of <memory>: Windows(8, horizon=4, tail='drop')",
        "  train      98 samples  55.1%  from the beginning to 0.6 of each series",
        "  valid      38 samples  21.3%  from 0.6 of each series to 0.9 of each series",
        "  purged     16 samples   9.0%  their targets reach over a boundary (horizon 4)",
        "  embargoed  14 samples   7.9%  they reach back over a boundary (embargo 7)",
        "  unused     12 samples   6.7%  they are in no subset",
    ]
    assert str(split.train) == "<subset train of a chronological split of <memory>: 98 of 178 samples>"
    assert [subset.name for subset in split] == ["train", "valid"]
    with pytest.raises(AttributeError, match="this chronological split has no test subset; it has train, valid"):
        _ = split.test


TIMED = timed([list(range(50)), list(range(20, 60))])
REFUSED: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (plain([50]), {"fractions": (0.7, 0.2, 0.2)}, OptionError, r"\(0.7, 0.2, 0.2\) and sum up to 1.1; expected two or three"),
    (plain([50]), {"fractions": (0.7, -0.2)}, OptionError, "expected two or three numbers above 0"),
    (plain([50]), {"fractions": (1.0,)}, OptionError, "expected two or three numbers above 0"),
    (plain([50]), {"fractions": "most"}, OptionError, "expected two or three numbers above 0"),
    (plain([50]), {"horizon": -1}, OptionError, "horizon is -1; expected an integer from 0"),
    (plain([50]), {"warm_up": 1.5}, OptionError, "warm_up is 1.5; expected an integer"),
    (plain([50]), {"embargo": True}, OptionError, "embargo is True; expected an integer"),
    (plain([50]), {"horizon": 1}, LeakError, r"horizon is 1, but the targets of Windows\(4, horizon=2\) reach 2 steps"),
    (plain([50]), {"embargo": 5, "warm_up": 3}, LeakError, "windows of 4 steps with a warm-up of 3 reach back 6"),
    (plain([50]), {"boundaries": [10]}, OptionError, "has no column of time to find boundaries in"),
    (plain([50]), {"boundaries": [10], "fractions": (0.5, 0.5)}, OptionError, "two ways to say where to cut"),
    (plain([50]), {"time": "when"}, OptionError, "has no column 'when'; it has x"),
    (plain([50]), {"time": "x"}, OptionError, "column 'x' of <memory> holds float64 per step; expected one time"),
    (plain([20]), {"fractions": (0.7, 0.15, 0.15)}, OptionError, "the valid subset of this chronological split .* has no sample"),
    (plain([3]), {}, OptionError, "has no sample of Windows"),
    (TIMED, {"time": "t", "boundaries": [60]}, OptionError, "boundary 60 is outside the data: 't' of <memory> runs from 0 to 59"),
    (TIMED, {"time": "t", "boundaries": [0]}, OptionError, "the boundary 0 is outside the data"),
    (TIMED, {"time": "t", "boundaries": [30, 20]}, OptionError, "expected times that rise"),
    (TIMED, {"time": "t", "boundaries": [10, 20, 30]}, OptionError, "expected one time"),
    (TIMED, {"time": "t", "boundaries": "2021"}, OptionError, "expected one time"),
    (TIMED, {"time": "t", "boundaries": ["2021-01-01"]}, OptionError, r"'2021-01-01' is not a time of column 't' \(int64\)"),
    (timed([[1, 2], [5, 9, 7]]), {"time": "t"}, TimeOrderError, "falls from 9 to 7 at step 4"),
]  # fmt: skip


@pytest.mark.parametrize(("store", "options", "error", "words"), REFUSED)
def test_invalid_options_are_refused_in_one_line(store: Any, options: dict[str, Any], error: Any, words: str) -> None:
    with pytest.raises(error, match=words) as found:
        chronological(store, Windows(4, horizon=2) if len(store) and store.num_steps != 5 else Windows(1), **options)
    assert "\n" not in str(found.value)


def test_whole_series_need_a_time() -> None:
    with pytest.raises(OptionError, match=r"Sequences\(9\) has whole series as samples, and <memory> has no time"):
        chronological(plain([5, 5]), Sequences(9))
    with pytest.raises(OptionError, match="reach over no boundary: leave out horizon"):
        chronological(timed([[1, 2], [3, 4]]), Sequences(9), time="t", horizon=1)


def test_dates_are_days(tmp_path: Path) -> None:
    days = np.arange("2021-01-01", "2021-03-01", dtype="datetime64[D]")
    csv = tmp_path / "days.csv"
    csv.write_text("day,x\n" + "".join(f"{day},1\n" for day in days))
    store = stoker.pack(str(csv), tmp_path / "store", time="day")
    split = chronological(store, Windows(2, tail="drop"), boundaries=[date(2021, 2, 1), datetime(2021, 2, 15)])
    assert [len(subset) for subset in split] == [30, 13, 13]

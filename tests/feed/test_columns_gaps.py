"""Gaps in packed stores: no window spans them, in any unit of time, and everything per series stays as it was."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.harness.flat_feed import flat_feed

import stoker
from stoker import Feed, Segments, Shuffle, Store, Weighted, Windows
from stoker.testing import assert_exactly_once, assert_resumes_exactly

START = datetime(2024, 1, 1)


def pack_hours(folder: Path, unit: str = "ns", missing: range = range(100, 220)) -> Store:
    """400 hours of two series; 120 hours of the first are missing."""
    hours = [hour for hour in range(400) if hour not in missing]
    times = pa.array([START + timedelta(hours=hour) for hour in [*hours, *range(400)]], pa.timestamp(unit))
    table = pa.table(
        {"name": ["a"] * len(hours) + ["b"] * 400, "when": times, "hour": [*map(float, hours), *map(float, range(400))]}
    )
    return stoker.pack(table, folder / f"{unit}.stoker", series="name", time="when")


def spans(feed: Feed) -> list[tuple[int, float, float]]:
    """Series, first and last hour of every window."""
    found = []
    for batch in feed:
        for row in range(int(batch["valid"].sum())):
            hours = batch["hour"][row][batch["mask"][row]] if "mask" in batch else batch["hour"][row]
            found.append((int(batch["series"][row]), float(hours[0]), float(hours[-1])))
    return found


@pytest.mark.promise("P9")
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("view", [Windows(24, tail="drop"), Segments(24, tail="drop")], ids=str)
def test_no_window_spans_a_gap(tmp_path: Path, unit: str, view: Any) -> None:
    store = pack_hours(tmp_path, unit)
    options = {field: getattr(view, field) for field in ("length", "tail")}
    broken = type(view)(**options, max_gap="2h")
    feed = flat_feed(store, broken, batch_size=64, columns=["hour"], return_series=True)
    found = spans(feed)
    assert all(last - first == 23 for _, first, last in found)
    hours = {0: [range(100), range(220, 400)], 1: [range(400)]}
    stride = 24 if isinstance(view, Segments) else 1
    expected = [
        (series, float(run[k]), float(run[k + 23]))
        for series in hours
        for run in hours[series]
        for k in range(0, len(run) - 23, stride)
    ]
    assert found == expected
    assert "1 gap cut 2 series into 3 runs." in str(feed)


@pytest.mark.promise("P9", control=True)
def test_negative_control_without_max_gap_windows_span_the_gap(tmp_path: Path) -> None:
    feed = flat_feed(pack_hours(tmp_path), Windows(24, tail="drop"), batch_size=64, columns=["hour"], return_series=True)
    assert sum(last - first != 23 for _, first, last in spans(feed)) == 23


def test_breaks_follow_the_frequency_of_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = pack_hours(tmp_path)
    by_gap = Feed(store, Windows(24, max_gap="1h"), batch_size=64).num_samples
    declared = SimpleNamespace(**{name: getattr(store.manifest, name) for name in ("digest", "time", "key", "columns")}, freq="1h")
    monkeypatch.setattr(store, "manifest", declared)
    assert Feed(store, Windows(24, gaps="break"), batch_size=64).num_samples == by_gap
    assert Feed(store, Windows(24, gaps="break", max_gap="1000h"), batch_size=64).num_samples != by_gap  # max_gap comes first


def test_missing_months_are_gaps_and_months_are_not(tmp_path: Path) -> None:
    months = [date(2023, month, 1) for month in range(1, 13) if month != 6] + [date(2024, 1, 1)]
    store = stoker.pack(pa.table({"day": months, "x": np.arange(12.0)}), tmp_path / "m.stoker", time="day")
    batch = next(iter(Feed(store, Windows(7, max_gap="1mo"), batch_size=9, columns=["x"])))
    assert batch["lengths"][batch["valid"]].tolist() == [5, 7]


def test_scales_weights_ranks_and_resuming_work_over_runs(tmp_path: Path) -> None:
    store, view = pack_hours(tmp_path), Windows(24, stride=8, max_gap="2h")
    feed = flat_feed(store, view, batch_size=16, columns=["hour"], dtype="float64", normalize="zero", return_series=True)
    whole = [store[i]["hour"] for i in range(2)]
    for batch in feed:
        for row, series in enumerate(batch["series"].tolist()):
            if series >= 0:
                first = batch["hour"][row, 0] * whole[series].std() + whole[series].mean()
                assert abs(float(first) - round(float(first))) < 1e-6
    drawn = flat_feed(store, view, batch_size=16, order=Weighted([0.0, 1.0]), return_series=True, columns=["hour"])
    assert {one for batch in drawn for one in batch["series"].tolist()} <= {-1, 1}

    def make(**ranks: Any) -> Feed:
        return flat_feed(store, view, batch_size=4, order=Shuffle(1), return_index=True, columns=["hour"], **ranks)

    assert_exactly_once(make, worlds=(1, 2, 3))
    assert_resumes_exactly(make, worlds=(1, 2), cuts=[0, 5])


def test_a_pickled_dataset_finds_the_gaps_again(tmp_path: Path) -> None:
    import pickle

    feed = Feed(pack_hours(tmp_path), Windows(24, max_gap="2h"), batch_size=16, columns=["hour"])
    dataset = pickle.loads(pickle.dumps(feed.as_dataset()))
    assert len(dataset) == feed.num_samples
    assert dataset[90]["hour"].equal(feed.as_dataset()[90]["hour"])

"""Feed(scaler=…): every value is (x - center) / divisor of its series, on the host and on the device; leaks are refused."""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.feed.twin import all_samples
from tests.harness.flat_feed import flat_feed

import stoker
from stoker import Feed, Segments, Sequences, Shuffle, Store, Windows
from stoker.errors import LeakError
from stoker.split import SeriesScaler, chronological, grouped
from stoker.split.series_scaler import METHODS
from stoker.testing import assert_resumes_exactly

VIEW = Windows(5, stride=2, horizon=2)
VIEWS: dict[str, Any] = {
    "windows": VIEW,
    "segments": Segments(4, shift=1),
    "sequences": Sequences(7),
    "packed": Sequences(7, layout="packed"),
}
LENGTHS = (40, 31, 8, 25)


def make_store(dtype: str = "float32", width: int | None = None, seed: int = 0) -> Store:
    rng = np.random.default_rng(seed)
    shapes = [(n,) if width is None else (n, width) for n in LENGTHS]
    return Store.from_arrays(
        x=[(rng.normal(size=shape) * 7**i + 20 * i).astype(dtype) for i, shape in enumerate(shapes)],
        other=[rng.normal(size=n).astype("float32") for n in LENGTHS],
        group=np.arange(len(LENGTHS)),
    )


def slow_samples(store: Store, view: Any, scaler: SeriesScaler, kind: np.dtype[Any]) -> list[np.ndarray[Any, Any]]:
    """The steps of every sample, series by series and number by number."""
    scales = scaler.scales("x")
    found = []
    for series, start, count in all_samples(view, store.lengths.tolist()):
        rows = np.asarray(store[series]["x"])[start : start + count]
        flat = rows.reshape(count, -1)
        wide = flat.astype(scales.centers.dtype) if flat.dtype.itemsize == 2 or flat.dtype.kind != "f" else flat
        scaled = np.empty(flat.shape, dtype=wide.dtype)
        for k in range(flat.shape[1]):
            for t in range(count):
                scaled[t, k] = (wide[t, k] - scales.centers[series, k]) / scales.divisors[series, k]
        found.append(scaled.astype(kind).reshape(rows.shape))
    return found


@pytest.mark.promise("P16")
@pytest.mark.parametrize("residency", ["host", "device"])
@pytest.mark.parametrize("kind", VIEWS)
@settings(max_examples=12)
@given(
    dtype=st.sampled_from(["float32", "float64", "float16", "int32", "int64"]),
    width=st.sampled_from([None, 1, 3]),
    delivered=st.sampled_from([None, "float32", "float64"]),
    method=st.sampled_from(METHODS),
    seed=st.integers(0, 3),
)
def test_every_value_is_scaled_by_its_series(
    residency: str, kind: str, dtype: str, width: int | None, delivered: str | None, method: Any, seed: int
) -> None:
    store, view = make_store(dtype, width, seed), VIEWS[kind]
    scaler = SeriesScaler.fit(store, None, columns=["x"], method=method)
    feed = flat_feed(
        store,
        view,
        batch_size=3,
        columns=["x", "other", "group"],
        normalize=scaler,
        dtype=delivered,
        residency=residency,
        order=Shuffle(1),
        return_index=True,
    )
    plain = flat_feed(store, view, batch_size=3, columns=["other"], residency=residency, order=Shuffle(1), dtype=delivered)
    expected = slow_samples(store, view, scaler, feed.columns[0].dtype)
    assert feed.columns[0].dtype == np.dtype(delivered or (dtype if dtype.startswith("float") else "float32"))
    for batch, unscaled in zip(feed, plain, strict=True):
        numbers = batch["sample"].numpy()
        assert torch.equal(batch["other"], unscaled["other"]), "columns that the scaler does not have are as they were"
        if kind == "packed":
            wanted = np.concatenate([expected[n] for n in numbers if n >= 0])
            np.testing.assert_array_equal(batch["x"].numpy(), wanted)
            continue
        rows, target = batch["x"].numpy(), batch["x_target"].numpy() if "x_target" in batch else None
        for i, number in enumerate(numbers):
            wanted = expected[number] if number >= 0 else expected[0][:0]
            begin = 0 if isinstance(view, Sequences) else view.length if view.horizon else view.shift
            for found, start in ((rows, 0), *([(target, begin)] if target is not None else [])):
                part = wanted[start : start + found.shape[1]]
                np.testing.assert_array_equal(found[i, : len(part)], part)
                assert not found[i, len(part) :].any(), "padding stays zero"


def fitted(store: Store, view: Any = VIEW) -> tuple[stoker.split.Split, SeriesScaler]:
    split = chronological(store, view, fractions=(0.6, 0.4), overlap="inputs")
    return split, SeriesScaler.fit(store, split.train, columns=["x"], unseen="global")


def test_on_disk_in_a_stream_and_as_a_dataset(tmp_path: Path) -> None:
    store = make_store().save(tmp_path / "store")
    split, scaler = fitted(store)
    make = partial(flat_feed, store, VIEW, subset=split.train, batch_size=4, scaler=scaler, order=Shuffle(0), return_index=True)
    for one, other in zip(make(residency="host"), make(residency="stream", threads=2), strict=True):
        assert torch.equal(one["x"], other["x"])
    dataset = pickle.loads(pickle.dumps(make().as_dataset()))
    batch = next(iter(make()))
    assert torch.equal(dataset[batch["sample"].tolist()]["x"], batch["x"])
    assert_resumes_exactly(make, worlds=(1, 2))
    assert "scaled     x: each series by its training steps" in str(make())


def test_predictions_are_inverted() -> None:
    store = make_store()
    split, scaler = fitted(store)
    feed = flat_feed(store, VIEW, subset=split.valid, batch_size=64, normalize=scaler, return_index=True)
    raw = Feed(store, VIEW, subset=split.valid, batch_size=64)
    batch, unscaled = next(iter(feed)), next(iter(raw))
    held = batch["valid"]
    series = feed.samples.locate(batch["sample"][held].numpy()).series
    back = scaler.inverse(batch["x_target"][held], series, "x")
    there = batch["target_mask"][held]
    torch.testing.assert_close(back[there], unscaled["x_target"][held][there], rtol=1e-5, atol=1e-4)


@pytest.mark.promise("P16")
def test_a_leak_is_refused() -> None:
    store = make_store()
    split, scaler = fitted(store)
    for subset in (split.train, split.valid, None):
        Feed(store, VIEW, subset=subset, batch_size=2, normalize=scaler)
    careless = SeriesScaler.fit(store, None, columns=["x"])
    for subset in split:
        with pytest.raises(LeakError, match=r"fitted on all steps of the store, not on the training subset of the split"):
            Feed(store, VIEW, subset=subset, batch_size=2, normalize=careless)
    of_valid = SeriesScaler.fit(store, split.valid, columns=["x"], unseen="global")
    other = chronological(store, VIEW, fractions=(0.5, 0.5), overlap="inputs")
    for subset, wrong in ((split.train, of_valid), (split.valid, of_valid), (other.valid, scaler)):
        with pytest.raises(LeakError, match="fitted on another subset"):
            Feed(store, VIEW, subset=subset, batch_size=2, normalize=wrong)
    by_series = grouped(store, VIEW, fractions=(0.5, 0.5), seed=1)
    Feed(store, VIEW, subset=by_series.valid, batch_size=2, normalize=careless)


@pytest.mark.promise("P16", control=True)
def test_negative_control_a_scaler_of_all_steps_shows_the_future() -> None:
    """What the check keeps out: training batches that change with values of the test."""
    store = make_store()
    split, _ = fitted(store)
    ends = [int(n * 0.6) for n in LENGTHS]
    changed = Store.from_arrays(
        x=[
            np.where(np.arange(n) < end, store[i]["x"], 1e6).astype("f4")
            for i, (n, end) in enumerate(zip(LENGTHS, ends, strict=True))
        ],
        other=[store[i]["other"] for i in range(len(LENGTHS))],
        group=np.arange(len(LENGTHS)),
    )

    def batches(data: Store, fit_on: Any) -> torch.Tensor:
        scaler = SeriesScaler.fit(data, fit_on, columns=["x"], unseen="global")
        scaler.fitted_on = split.train.fingerprint
        return torch.cat([batch["x"] for batch in Feed(data, VIEW, subset=split.train, batch_size=8, normalize=scaler)])

    assert torch.equal(batches(store, split.train), batches(changed, split.train))
    assert not torch.equal(batches(store, None), batches(changed, None))

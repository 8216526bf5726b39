"""Per-series scaling: equal to NumPy's statistics of each series' training steps; nothing of other subsets counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.errors import LeakError, OptionError, SourceInvalidError, SourceNotFoundError
from stoker.feed.columns import lengths_of
from stoker.split import SeriesScaler
from stoker.split.series_scaler import METHODS

VALUES = st.floats(-1e6, 1e6, width=32) | st.just(float("nan")) | st.just(float("inf"))


def slow(values: np.ndarray, method: str) -> tuple[float, float]:
    x = values[np.isfinite(values)].astype(np.float64)
    center, divisor = {
        "standard": lambda: (x.mean(), x.std()),
        "robust": lambda: (np.median(x), np.percentile(x, 75) - np.percentile(x, 25)),
        "minmax": lambda: (x.min(), x.max() - x.min()),
        "meanabs": lambda: (0.0, np.abs(x).mean()),
    }[method]()
    return center, divisor if divisor > 1e-7 * abs(center) and divisor > 0 else 1.0


@given(st.lists(st.lists(VALUES, min_size=1, max_size=9).filter(lambda v: np.isfinite(v).any()), min_size=1, max_size=4), st.data())
def test_statistics_are_those_of_numpy(series: list[list[float]], data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(METHODS))
    store = stoker.Store.from_arrays(x=[np.array(one, dtype=np.float64) for one in series])
    found = SeriesScaler.fit(store, None, columns=["x"], method=method).scales("x")
    for i, one in enumerate(series):
        center, divisor = slow(np.array(one), method)
        scale = max(float(np.abs(np.array(one)[np.isfinite(one)]).max()), 1.0)
        np.testing.assert_allclose(found.centers[i, 0], center, rtol=1e-9, atol=1e-9 * scale)
        if abs(divisor - 1.0) > 0 and divisor > 1e-6 * scale:
            np.testing.assert_allclose(found.divisors[i, 0], divisor, rtol=1e-6)


def forecasting(num_series: int = 3, steps: int = 60) -> tuple[stoker.Store, stoker.split.Split]:
    rng = np.random.default_rng(0)
    store = stoker.Store.from_arrays(x=[rng.normal(10.0**i, 2.0**i, steps) for i in range(num_series)])
    return store, stoker.split.chronological(store, stoker.Windows(6, horizon=2, tail="drop"), fractions=(0.7, 0.3))


@pytest.mark.promise("P16")
@pytest.mark.parametrize("method", METHODS)
def test_only_training_steps_count(method: str) -> None:
    store, split = forecasting()
    found = SeriesScaler.fit(store, split.train, columns=["x"], method=method)  # type: ignore[arg-type]
    last = max(stops.max() for _, _, stops, _ in split.train.over(split.train.view.over(lengths_of(store))).step_ranges()) - 120
    changed = [np.where(np.arange(60) < last, store[i]["x"], 1e9) for i in range(3)]
    again = SeriesScaler.fit(*refit(changed), columns=["x"], method=method)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found.scales("x").centers, again.scales("x").centers)
    np.testing.assert_array_equal(found.scales("x").divisors, again.scales("x").divisors)


def refit(series: list[np.ndarray]) -> tuple[stoker.Store, stoker.split.Subset]:
    store = stoker.Store.from_arrays(x=series)
    return store, stoker.split.chronological(store, stoker.Windows(6, horizon=2, tail="drop"), fractions=(0.7, 0.3)).train


def test_negative_control_all_steps_would_leak() -> None:
    store, split = forecasting()
    scaler = SeriesScaler.fit(store, None, columns=["x"])
    with pytest.raises(LeakError, match="fitted on all steps"):
        scaler.check(split)
    SeriesScaler.fit(store, split.train, columns=["x"]).check(split)


@pytest.mark.parametrize("kind", ["numpy", "torch"])
@pytest.mark.parametrize("method", METHODS)
def test_inverse_is_the_inverse_of_transform(kind: str, method: str) -> None:
    store, split = forecasting()
    scaler = SeriesScaler.fit(store, split.train, columns=["x"], method=method)  # type: ignore[arg-type]
    values = np.random.default_rng(1).normal(size=(4, 5))
    batch = torch.from_numpy(values) if kind == "torch" else values
    series = [2, 0, 1, 2]
    back = scaler.inverse(scaler.transform(batch, series, "x"), series, "x")
    np.testing.assert_allclose(np.asarray(back.tolist()), values, rtol=1e-9, atol=1e-9)


def test_series_without_training_values_are_refused_or_get_global_ones() -> None:
    store = stoker.Store.from_arrays(x=[np.array([1.0, 3.0]), np.array([np.nan, np.nan]), np.array([5.0, 9.0])])
    with pytest.raises(OptionError, match=r"1 of 3 series \(1\).*unseen='global'"):
        SeriesScaler.fit(store, None, columns=["x"])
    found = SeriesScaler.fit(store, None, columns=["x"], unseen="global").scales("x")
    assert found.centers[:, 0].tolist() == [2.0, 4.5, 7.0]
    assert found.divisors[:, 0].tolist() == [1.0, 1.5, 2.0]


def keyed(names: list[str], *, folder: Path, steps: int = 20) -> stoker.Store:
    rows = [(name, t, float(t * (i + 1))) for i, name in enumerate(names) for t in range(steps)]
    path = folder / f"{'-'.join(names)}.csv"
    path.write_text("id,t,x\n" + "".join(f"{name},{t},{x}\n" for name, t, x in rows))
    return stoker.pack(path, path.with_suffix(".stoker"), series="id")


def test_a_scaler_finds_series_of_another_store_by_their_keys(tmp_path: Path) -> None:
    store, later = keyed(["a", "b"], folder=tmp_path), keyed(["b", "c"], folder=tmp_path, steps=30)
    scaler = SeriesScaler.fit(store, None, columns=["x"])
    assert scaler.for_store(store) is scaler
    with pytest.raises(OptionError, match=r"1 of 2 series of .* were not in the training data \('c'\)"):
        scaler.for_store(later)
    scaler.save(tmp_path / "scaler.safetensors")
    found = SeriesScaler.open(tmp_path / "scaler.safetensors").for_store(later, unseen="global").scales("x")
    centers = scaler.scales("x").centers
    assert found.centers[:, 0].tolist() == [centers[1, 0], centers.mean()]
    with pytest.raises(OptionError, match="the scaler has 2 series with keys, but <memory> has 2 without"):
        scaler.for_store(stoker.Store.from_arrays(x=[[1.0], [2.0]]))


def test_a_scaler_is_saved_and_opened(tmp_path: Path) -> None:
    store, split = forecasting()
    scaler = SeriesScaler.fit(store, split.train, columns=["x"], method="robust")
    scaler.save(tmp_path / "s.safetensors")
    again = SeriesScaler.open(tmp_path / "s.safetensors")
    again.check(split)
    assert (again.describe(), repr(again)) == (scaler.describe(), repr(scaler))
    with pytest.raises(SourceNotFoundError, match="does not exist"):
        SeriesScaler.open(tmp_path / "gone")
    (tmp_path / "bad").write_bytes(b"no tensors")
    with pytest.raises(SourceInvalidError, match="is not the file of a scaler"):
        SeriesScaler.open(tmp_path / "bad")
    short = {**scaler.state_dict(), "divisor.x": torch.ones(1, 1)}
    SeriesScaler.load(short).save(tmp_path / "bad")
    with pytest.raises(SourceInvalidError, match="'x' have other shapes"):
        SeriesScaler.open(tmp_path / "bad")

"""`compat="time-moe"` is Time-MoE's own data set bit for bit; without it no target is lost."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import torch
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset
from hypothesis import given, settings
from tests.feed.twin import assert_same_batch
from tests.harness import num_examples
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Segments, Shuffle, Store, Windows

Array = npt.NDArray[Any]
W = 8
METHODS = [None, "zero", "max"]
DTYPES = ["float32", "float64", "float16", "int64", "int32", "int8"]


def scale(values: Array, method: str | None) -> Array:
    """What Time-MoE does to a whole series: in its own type, and cast back to it."""
    with np.errstate(all="ignore"):
        if method == "zero":
            mean, deviation = values.mean(), values.std()
            return ((values - mean) if deviation == 0 else (values - mean) / deviation).astype(values.dtype)
        if method == "max":
            largest = np.abs(values).max()
            return (values if largest == 0 else values / largest).astype(values.dtype)
        return values


def original(series: list[Array], length: int, stride: int, method: str | None) -> list[dict[str, Array]]:
    """All windows of Time-MoE's data set, one after the other."""
    found = []
    for values in series:
        if len(values) < 2:
            continue
        scaled = scale(values, method)
        for offset in range(0, max(1, len(values) - length), stride):
            window = scaled[offset : offset + length + 1].astype(np.float32)
            padded = np.concatenate([window, np.zeros(length + 1 - len(window), dtype=np.float32)])
            mask = (np.arange(length) < len(window) - 1).astype(np.int32)
            found.append({"input_ids": padded[:-1], "labels": padded[1:], "loss_masks": mask})
    return found


def stacked(windows: list[dict[str, Array]]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.stack([window[name] for window in windows])) for name in windows[0]}


def check(series: list[Array], length: int, stride: int | None, method: str | None, **options: Any) -> None:
    """Compare a sequential epoch with the original."""
    view = Segments(length, compat="time-moe") if stride is None else Windows(length, stride=stride, compat="time-moe")
    expected = original(series, length, stride or length, method)
    store = Store.from_arrays(x=series)
    feed = flat_feed(store, view, batch_size=7, normalize=method, last_batch="short", **options)
    assert feed.num_samples == len(expected)
    for i, batch in enumerate(feed):
        assert_same_batch(with_one_nan(batch), with_one_nan(stacked(expected[i * 7 : i * 7 + 7])))


def with_one_nan(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """There are many NaNs, and which of them comes out of a calculation depends on the processor."""
    return {
        name: torch.where(tensor.isnan(), torch.nan, tensor) if tensor.is_floating_point() else tensor
        for name, tensor in batch.items()
    }


def some_series(dtype: str, *, seed: int = 0) -> list[Array]:
    """One series of every length from 0 to 3 windows, at different levels, in a type."""
    rng = np.random.default_rng(seed)
    found = []
    for length in range(3 * W + 3):
        if np.dtype(dtype).kind == "f":
            values = rng.normal(size=length) * 10.0 ** rng.integers(-3, 3) + rng.normal() * 10.0 ** rng.integers(-3, 3)
        else:
            info = np.iinfo(dtype)
            values = rng.integers(max(info.min, -1000), min(info.max, 1000), length)
        found.append(values.astype(dtype))
    return found


@pytest.mark.parametrize("residency", ["host", "device"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("stride", [None, 1, 3, 11])
def test_every_length_in_every_type(stride: int | None, dtype: str, method: str | None, residency: str) -> None:
    check(some_series(dtype), W, stride, method, residency=residency)


@pytest.mark.parametrize("residency", ["host", "device"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_what_is_odd_there_is_odd_here(dtype: str, method: str | None, residency: str) -> None:
    """Constant series that become noise, NaN that spreads, infinities, zeros, and statistics that overflow."""
    rng = np.random.default_rng(1)
    odd = [
        np.full(20, 0.1),
        np.full(21, 1000.7),
        np.zeros(13),
        np.full(9, -0.0),
        np.r_[np.nan, np.arange(10.0)],
        np.r_[np.arange(10.0), np.nan],
        np.r_[np.arange(5.0), np.inf, np.arange(5.0)],
        np.r_[np.arange(5.0), -np.inf, np.inf],
        rng.normal(size=30_000) * 300,
        rng.normal(size=300) * 30_000,
    ]
    with np.errstate(over="ignore"):
        series = [values.astype(dtype) for values in odd]
    check(series, W, None, method, residency=residency)


@settings(max_examples=num_examples(100))
@given(
    lengths=st.lists(st.integers(0, 200), min_size=1, max_size=6).filter(lambda some: max(some) > 1),
    length=st.integers(1, 40),
    stride=st.none() | st.integers(1, 60),
    method=st.sampled_from(METHODS),
    dtype=st.sampled_from(["float32", "float64"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_series(lengths: list[int], length: int, stride: int | None, method: str | None, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    check([(rng.normal(size=size) * 100).astype(dtype) for size in lengths], length, stride, method)


@pytest.mark.parametrize("length", [2047, 2048, 2049, 4096, 6144, 6145, 8640])
def test_the_lengths_that_lose_their_tails_there(length: int) -> None:
    rng = np.random.default_rng(0)
    series = [rng.normal(size=length).astype(np.float32), rng.normal(size=3).astype(np.float32)]
    check(series, 2048, None, "zero")
    feed = Feed(Store.from_arrays(x=series), Segments(2048, compat="time-moe"), batch_size=1)
    windows = 1 + max(0, length - 2049) // 2048
    assert feed.num_samples == windows + 1
    used = sum(int(batch["loss_masks"].sum()) for batch in feed) - 2
    assert used == min(length - 1, windows * 2048)


@pytest.mark.parametrize("stride", [None, 5])
@pytest.mark.parametrize("method", METHODS)
def test_a_binary_folder_as_time_moe_reads_it(method: str | None, stride: int | None, tmp_path: Path) -> None:
    series = some_series("float32", seed=3)
    offsets = np.cumsum([0, *map(len, series)]).tolist()
    (tmp_path / "data-1-of-1.bin").write_bytes(np.concatenate(series).tobytes())
    scales = [{"offset": offset, "length": len(values)} for offset, values in zip(offsets[:-1], series, strict=True)]
    meta = {"num_sequences": len(series), "dtype": "float32", "files": {"data-1-of-1.bin": offsets[-1]}, "scales": scales}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    check_against_file(tmp_path, series, method, stride)


@pytest.mark.parametrize("numbers", ["int64", "float64"])
@pytest.mark.parametrize("method", METHODS)
def test_a_jsonl_file_as_time_moe_reads_it(method: str | None, numbers: str, tmp_path: Path) -> None:
    series = some_series(numbers, seed=4)
    path = tmp_path / "series.jsonl"
    path.write_text("\n".join(json.dumps({"sequence": values.tolist()}) for values in series))
    check_against_file(path, series, method, None)


def check_against_file(path: Path, series: list[Array], method: str | None, stride: int | None) -> None:
    windows = TimeMoEWindowDataset(TimeMoEDataset(path, method), W, stride=stride)
    view = Windows(W, stride=stride, compat="time-moe") if stride else Segments(W, compat="time-moe")
    feed = Feed(Store.from_arrays(x=series), view, batch_size=10**6, normalize=method, last_batch="short")
    (batch,) = feed
    assert_same_batch(batch, stacked(list(windows)))
    dataset = feed.as_dataset()
    assert len(dataset) == len(windows)
    assert_same_batch(dataset[5], {name: torch.from_numpy(value) for name, value in windows[5].items()})


def test_a_masked_last_batch_has_no_loss() -> None:
    """A model takes the three entries by name, so there is no fourth that says which rows are samples."""
    feed = Feed(Store.from_arrays(x=[np.arange(20.0)]), Segments(4, compat="time-moe"), batch_size=3)
    *_, batch = feed
    assert list(batch) == ["input_ids", "labels", "loss_masks"]
    assert batch["loss_masks"].tolist() == [[1] * 4, [0] * 4, [0] * 4]
    assert not batch["input_ids"][1:].any()


def test_without_compat_every_target_comes_exactly_once() -> None:
    """Every step of a series but its first is a target, once, and stands where its input ends."""
    for lengths in ([*range(3 * W + 2)], [1, 0, 2], [W] * 5, [W + 1] * 5, [2 * W] * 3):
        starts = np.cumsum([0, *lengths])[:-1]
        store = Store.from_arrays(lengths=lengths, x=np.arange(sum(lengths)))
        for last in ("pad", "short"):
            seen = []
            for batch in Feed(store, Segments(W, shift=1), batch_size=5, order=Shuffle(), last_batch=last):
                mask = batch["target_mask"] if "target_mask" in batch else torch.ones_like(batch["x"], dtype=torch.bool)
                mask = mask & batch["valid"][:, None] if last == "pad" else mask
                assert (batch["x"][mask] + 1).equal(batch["x_target"][mask])
                seen += batch["x_target"][mask].tolist()
            targets = [step for start, size in zip(starts, lengths, strict=True) for step in range(start + 1, start + size)]
            assert sorted(seen) == targets


def test_compat_loses_targets() -> None:
    """Negative control of the test above: it is the tails that Time-MoE drops."""
    feed = Feed(Store.from_arrays(x=[np.arange(2 * W)]), Segments(W, compat="time-moe"), batch_size=5)
    assert sum(int(batch["loss_masks"].sum()) for batch in feed) == W < 2 * W - 1

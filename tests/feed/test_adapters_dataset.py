"""Samples as a map-style dataset: any way to index it, one sample or many, in this process or another."""

from __future__ import annotations

import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.feed.ecosystem import LENGTHS, assert_same, ragged, window_feed
from torch.utils.data import DataLoader

import stoker

LENGTH, STRIDE, HORIZON = 4, 2, 1
pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


def slow_samples() -> list[dict[str, Any]]:
    """Each window cut out of its series by hand."""
    samples = []
    for series in range(len(LENGTHS)):
        values = ragged()[series]["x"]
        for start in range(0, len(values), STRIDE):
            window = values[start : start + LENGTH + HORIZON]
            if start and start - STRIDE + LENGTH + HORIZON >= len(values):
                break  # the window before has reached the end
            if len(window) > LENGTH:
                samples.append({"x": window[:LENGTH], "x_target": window[LENGTH:]})
    return samples


def test_a_sample_is_the_window_that_the_series_has_there() -> None:
    dataset, expected = window_feed().as_dataset(), slow_samples()
    assert len(dataset) == len(expected)
    for number, sample in enumerate(dataset):
        assert sample["sample"] == number
        assert sample["x"].tolist() == expected[number]["x"].tolist()
        assert sample["x_target"].tolist() == expected[number]["x_target"].tolist()


@pytest.mark.parametrize(
    "indices", [[5, 0, -1], (5, 0, -1), np.array([5, 0, -1]), torch.tensor([5, 0, -1]), [torch.tensor(5), torch.tensor(0), -1]]
)
def test_many_numbers_are_a_batch(indices: Any) -> None:
    dataset = window_feed().as_dataset()
    assert_same(dataset[indices], dataset.collate([dataset[5], dataset[0], dataset[len(dataset) - 1]]))


def test_a_kept_sample_never_changes() -> None:
    dataset = window_feed().as_dataset()
    kept = [dataset[number] for number in range(len(dataset))]
    for _ in range(50):
        dataset[list(range(len(dataset)))[::-1]]
    assert_same(dataset.collate(kept), dataset[:])


def double(arrays: dict[str, Any]) -> dict[str, Any]:
    return {"doubled": arrays["x"] * 2}


def test_samples_are_encoded_as_batches_of_the_feed_are() -> None:
    feed = window_feed(transform=double, last_batch="short")
    dataset = feed.as_dataset()
    assert_same(dataset[:4], next(iter(feed)))
    assert_same(dataset[3], {"doubled": window_feed().as_dataset()[3]["x"] * 2})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    values = {"series": np.repeat(np.arange(100), 50), "x": np.arange(5000.0)}
    stoker.pack(values, tmp_path / "numbers.stoker", series="series")
    return tmp_path / "numbers.stoker"


def test_a_dataset_on_disk_travels_as_its_path(folder: Path) -> None:
    feed = stoker.Feed(stoker.open(folder), stoker.Windows(8), batch_size=4, columns=["x"], normalize="zero", dtype="float32")
    dataset = feed.as_dataset()
    message = pickle.dumps(dataset)
    assert len(message) < 6_000 < stoker.open(folder).column("x").nbytes  # two scales a series, and no value
    assert_same(pickle.loads(message)[:], dataset[:])


def test_a_dataset_whose_store_was_packed_again_is_refused(folder: Path) -> None:
    message = pickle.dumps(stoker.Feed(stoker.open(folder), stoker.Windows(8), batch_size=4, columns=["x"]).as_dataset())
    stoker.pack({"series": np.arange(3), "x": np.arange(3.0)}, folder, series="series", replace=True)
    with pytest.raises(stoker.errors.FeedError, match=r"numbers\.stoker was replaced or appended to since the feed was made"):
        pickle.loads(message)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_may_be_spawned(folder: Path, method: str) -> None:
    dataset = stoker.Feed(stoker.open(folder), stoker.Windows(8), batch_size=4, columns=["x"]).as_dataset()
    loader = DataLoader(dataset, batch_size=100, num_workers=1, multiprocessing_context=method, collate_fn=dataset.collate)
    assert_same(dataset.collate([sample for batch in loader for sample in split(batch)]), dataset[:])


def split(batch: dict[str, torch.Tensor]) -> list[dict[str, torch.Tensor]]:
    return [{name: tensor[row] for name, tensor in batch.items()} for row in range(len(batch["x"]))]


def first_batch_of_a_worker_forked_while_the_ring_is_locked(dataset: Any, *, timeout: int = 100) -> dict[str, torch.Tensor]:
    loader = DataLoader(
        dataset, batch_size=4, num_workers=1, timeout=timeout, collate_fn=dataset.collate, multiprocessing_context="fork"
    )
    with dataset._open().ring._lock:
        batch: dict[str, torch.Tensor] = next(iter(loader))
    return batch


def test_a_worker_forked_in_the_middle_of_a_gather_has_memory_of_its_own() -> None:
    dataset = window_feed().as_dataset()
    assert_same(first_batch_of_a_worker_forked_while_the_ring_is_locked(dataset), dataset[:4])


@pytest.mark.slow
def test_without_memory_of_its_own_such_a_worker_would_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    for guard in ("adapters", "transfer"):  # a dataset opens its gather again in a fork, and a ring makes another lock
        monkeypatch.setattr(f"stoker.feed.{guard}.os", SimpleNamespace(getpid=lambda: 1))
    with pytest.raises(RuntimeError, match="timed out"):
        first_batch_of_a_worker_forked_while_the_ring_is_locked(window_feed().as_dataset(), timeout=2)

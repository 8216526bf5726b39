"""What the tests against other libraries share: a few series, and the feeds that are made from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from tests.harness.flat_feed import flat_feed

import stoker

LENGTHS = (9, 5, 12, 3, 8, 20)
NUM_SERIES, LENGTH = 24, 8


def ragged() -> stoker.Store:
    """Series of different lengths; no value occurs twice."""
    return stoker.Store.from_arrays(x=[1000 * i + np.arange(n, dtype=np.float32) for i, n in enumerate(LENGTHS)])


def window_feed(**options: Any) -> stoker.Feed:
    """Windows of `ragged`, some of them padded, with their numbers as `sample`."""
    given = {"batch_size": 4, "return_index": True, **options}
    return flat_feed(ragged(), stoker.Windows(4, stride=2, horizon=1), **given)


def language_feed(**options: Any) -> stoker.Feed:
    """One sample a series, under the names that a language model takes; the series of a sample is its first value."""
    numbers = np.arange(NUM_SERIES, dtype=np.float32)[:, None] + np.arange(LENGTH + 1, dtype=np.float32)[None] / 100
    given = {"batch_size": 4, "last_batch": "drop", "transform": as_language_model, **options}
    return flat_feed(stoker.Store.from_arrays(x=numbers), stoker.Windows(LENGTH, shift=1), **given)


def as_language_model(batch: dict[str, Any]) -> dict[str, Any]:
    """The entries that a language model takes."""
    masks = batch.get("target_mask", np.ones(batch["x"].shape, dtype=bool))
    masks = masks & batch["valid"][:, None] if "valid" in batch else masks
    entries = {"input_ids": batch["x"], "labels": batch["x_target"], "loss_masks": masks.astype(np.int32)}
    return entries | {name: batch[name] for name in ("sample",) if name in batch}


def series_of(batch: dict[str, torch.Tensor]) -> list[int]:
    """Which series a batch of `language_feed` holds."""
    return [round(float(row[0])) for row in batch["input_ids"]]


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    """The same names, types and values."""
    assert list(found) == list(expected)
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name

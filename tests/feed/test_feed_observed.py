"""Observed masks: NaN becomes 0 and is marked, bit for bit as a loop over the samples does it, by every residency."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from tests.feed.stores import LENGTHS
from tests.feed.twin import Twin, assert_same_batch
from tests.harness import num_examples, tiny_store
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Segments, Sequences, Shuffle, Store, Windows
from stoker import open as open_store

pytestmark = pytest.mark.usefixtures("poisoned")

VIEWS = [
    Windows(4),
    Windows(3, stride=2, horizon=2),
    Windows(3, shift=1, tail="drop"),
    Segments(4),
    Sequences(6),
    Sequences(8, buckets=(2, 8), keep="last"),
    Sequences(5, layout="packed"),
]


def make_store(seed: int = 0) -> Store:
    """Columns of all types of floats, a third of whose values is missing; some are infinite, some are -0.0."""
    rng = np.random.default_rng(seed)
    steps = sum(LENGTHS)

    def values(dtype: str, *shape: int) -> Any:
        found = rng.normal(size=shape).astype(dtype)
        found[rng.random(shape) < 0.3] = np.nan
        found[rng.random(shape) < 0.05] = -np.nan
        found.reshape(-1)[::11] = -0.0
        return found

    columns = {
        "half": values("f2", steps),
        "single": values("f4", steps),
        "double": values("f8", steps),
        "wide": values("f4", steps, 3),
    }
    return Store.from_arrays(lengths=LENGTHS, **columns, static=values("f8", len(LENGTHS)), count=np.arange(steps))


def expected_batch(twin: Twin, numbers: list[int], rows: int, observed: list[str]) -> dict[str, torch.Tensor]:
    """The batch of the twin, in which each missing value is replaced, one after the other."""
    batch = twin.batch(numbers, rows, valid=True, shows_numbers=False)
    counts = [twin.samples[number].count for number in numbers] + [0] * (rows - len(numbers))
    packed = "cu_seqlens" in batch
    for entry in list(batch):
        name = entry.removesuffix("_target")
        if name not in observed:
            continue
        view, values = twin.view, batch[entry].clone()
        there = torch.zeros(values.shape, dtype=torch.bool)
        begin = (view.length if view.horizon else view.shift) if entry != name else 0
        for row in range(len(values)):
            if name == "static":
                where: list[Any] = [row] if row < len(numbers) else []
            else:
                where = [row] if packed else [(row, step) for step in range(values.shape[1]) if begin + step < counts[row]]
            for place in where:
                there[place] = ~values[place].isnan()
                values[place] = torch.where(there[place], values[place], torch.zeros((), dtype=values.dtype))
        batch[entry], batch[f"{entry}_observed"] = values, there
    return batch


@pytest.mark.promise("P8")
@settings(deadline=None, max_examples=num_examples(40))
@given(
    st.sampled_from(VIEWS), st.sampled_from(["host", "device"]), st.sampled_from([None, "zero"]), st.integers(1, 9), st.booleans()
)
def test_batches_are_those_of_the_twin(view: Any, residency: str, normalize: Any, batch_size: int, cast: bool) -> None:
    store, dtype = make_store(), "float32" if cast else None
    names = ["single", "double", "wide", "static", *([] if cast or normalize else ["half"])]
    twin = Twin(store, view, columns=names, dtype=dtype, normalize=normalize)
    feed = flat_feed(
        store,
        view,
        batch_size=batch_size,
        columns=names,
        dtype=dtype,
        normalize=normalize,
        residency=residency,
        observed=names,
        order=Shuffle(1),
    )
    order = feed.plan.numbers(0, 0, feed.num_samples).tolist()
    for first, batch in zip(range(0, len(order), batch_size), feed, strict=True):
        assert_same_batch(batch, expected_batch(twin, order[first : first + batch_size], batch_size, names))


def test_true_means_all_columns_of_floats_per_step() -> None:
    feed = Feed(make_store(), Windows(4, horizon=1), batch_size=2, observed=True)
    batch = next(iter(feed))
    marks = {name for name in batch if name.endswith("_observed")}
    assert marks == {f"{name}{end}_observed" for name in ("half", "single", "double", "wide") for end in ("", "_target")}
    assert batch["wide_observed"].shape == (2, 4, 3)
    assert "single_observed" in str(feed)


def test_bfloat16_has_a_mask_too(tmp_path: Any) -> None:
    tiny_store(tmp_path / "tiny")
    store = open_store(tmp_path / "tiny")
    host, device = (
        flat_feed(store, Sequences(5), batch_size=4, observed=["brief"], residency=where) for where in ("host", "device")
    )
    for a, b in zip(host, device, strict=True):
        assert_same_batch(a, b)
        assert a["brief_observed"].dtype == torch.bool

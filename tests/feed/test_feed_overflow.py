"""A finite value of a store is never delivered as an infinite one: the feed refuses it, with its place."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from numba import njit
from tests.harness import num_examples
from tests.harness.flat_feed import flat_feed

from stoker import Feed, Segments, Sequences, Shuffle, Store, Windows, _kernels
from stoker.errors import FeedError
from stoker.feed import padding
from stoker.feed.columns import FedColumn
from stoker.feed.device import DeviceColumn
from stoker.split import chronological

LENGTHS = [30, 0, 70]
RESIDENCIES = ["host", "device"]
TOP = float(np.finfo(np.float32).max)
HALF_STEP = 2.0**103
"""Half the distance to the number that would follow the largest float32: from there on, rounding ends in infinity."""


def store_with(value: float, *, at: int = 57, dtype: str = "float64", width: int | None = None) -> Store:
    values = np.arange(100.0 if width is None else 100.0 * width).astype(dtype).reshape((100,) if width is None else (100, width))
    values.reshape(100, -1)[at, -1] = value
    return Store.from_arrays(lengths=LENGTHS, x=values)


def whole_epoch(store: Store, view: Any, **options: Any) -> list[dict[str, torch.Tensor]]:
    with flat_feed(store, view, batch_size=16, order=Shuffle(3), **options) as feed:
        return [{name: tensor.clone() for name, tensor in batch.items()} for batch in feed]


VIEWS = [Windows(8), Windows(8, stride=3, tail="keep"), Segments(7, tail="keep"), Sequences(80), Sequences(80, layout="packed")]


@pytest.mark.promise("P2")
@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("width", [None, 3])
@pytest.mark.parametrize(("dtype", "value", "limit"), [("float32", -1e39, "3.4028235e+38"), ("float16", 7e4, "65504")])
def test_a_value_that_the_dtype_cannot_hold_is_refused(
    residency: str, view: Any, width: int | None, dtype: str, value: float, limit: str
) -> None:
    words = f"column 'x' of <memory> is {value} at step 27 of series 2, but the largest {dtype} is {limit}. Give dtype='float64'"
    with pytest.raises(FeedError, match=re.escape(words)):
        whole_epoch(store_with(value, width=width), view, dtype=dtype, residency=residency)


@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize(
    ("value", "delivered"),
    [(TOP + HALF_STEP * 0.999, TOP), (-TOP - HALF_STEP * 0.999, -TOP), (np.inf, np.inf), (-np.inf, -np.inf), (np.nan, np.nan)],
)
def test_what_rounds_to_the_largest_or_was_infinite_before_is_delivered(residency: str, value: float, delivered: float) -> None:
    batches = whole_epoch(store_with(value), Sequences(80), dtype="float32", residency=residency)
    values = torch.cat([batch["x"].reshape(-1) for batch in batches])
    odd = values[(values.abs() > 1e6) | values.isnan()]
    assert odd.equal(torch.tensor([delivered])) or (np.isnan(delivered) and odd.isnan().tolist() == [True])


@pytest.mark.parametrize("residency", RESIDENCIES)
def test_only_what_is_delivered_counts(residency: str) -> None:
    """The value lies in steps of the test part, or behind the last whole window."""
    store = store_with(1e39, at=99)
    view = Windows(8, stride=8, tail="drop")
    assert whole_epoch(store, view, dtype="float32", residency=residency)
    split = chronological(store, Windows(4), fractions=(0.5, 0.5))
    assert whole_epoch(store, Windows(4), dtype="float32", residency=residency, subset=split.subsets["train"])
    with pytest.raises(FeedError, match="at step 69 of series 2"):
        whole_epoch(store, Windows(4), dtype="float32", residency=residency, subset=[*split.subsets.values()][-1])


@pytest.mark.promise("P2")
@pytest.mark.parametrize("residency", RESIDENCIES)
@pytest.mark.parametrize("width", [None, 2])
@pytest.mark.parametrize("dtype", [None, "float32", "float16"])
def test_normalising_that_overflows_is_refused(residency: str, width: int | None, dtype: str | None) -> None:
    """x - mean is beyond the largest float32, though x is not."""
    values = np.full((100, width or 1), TOP * 0.99, dtype=np.float32)
    values[57, -1] = -TOP
    store = Store.from_arrays(lengths=LENGTHS, x=values[:, 0] if width is None else values)
    words = r"column 'x' of <memory> is -3\.4028235e\+38 at step 27 of series 2, and normalize makes it infinite: the largest"
    with pytest.raises(FeedError, match=words):
        whole_epoch(store, Windows(8), normalize="zero", dtype=dtype, residency=residency)


@pytest.mark.promise("P2")
def test_moments_that_overflow_are_refused() -> None:
    """They would be infinite, and every value of the series 0 or NaN."""
    for value, method in ((1e200, "zero"), (1.7e308, "zero")):
        store = Store.from_arrays(x=[np.arange(9.0), np.array([value, -value, value])])
        with pytest.raises(
            FeedError, match=r"column 'x' of <memory> has values in series 1 whose mean or deviation is beyond the largest"
        ):
            Feed(store, Windows(2), batch_size=2, normalize=method)  # type: ignore[arg-type]
    large = Store.from_arrays(x=[np.array([1.7e308, -1.7e308])])
    assert whole_epoch(large, Windows(2), normalize="max")[0]["x"][0].tolist() == [1.0, -1.0]


def test_a_dataset_refuses_it_also_in_another_process(tmp_path: Path) -> None:
    store = store_with(1e39).save(tmp_path / "a.stoker")
    dataset = Feed(store, Windows(8), batch_size=4, dtype="float32").as_dataset()
    for one in (dataset, pickle.loads(pickle.dumps(dataset))):
        assert one[0]["x"].isfinite().all()
        with pytest.raises(FeedError, match="at step 27 of series 2"):
            one[range(len(one))]


@pytest.mark.promise("P2", control=True)
@pytest.mark.parametrize(
    ("residency", "guard", "without"),
    [
        ("host", (FedColumn, "refuse_overflow"), lambda *_: None),
        ("device", (DeviceColumn, "overflows"), lambda *_: np.zeros(0, dtype=np.int64)),
    ],
)
def test_negative_control_without_the_guard_infinity_is_delivered(
    residency: str, guard: tuple[type, str], without: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*guard, without)
    for dtype in ("float32", "float16"):
        batches = whole_epoch(store_with(1e39), Windows(8), dtype=dtype, residency=residency)
        assert any(batch["x"].isinf().any() for batch in batches)


# ---- the flag of the processor ----


@pytest.mark.promise("P2")
@settings(max_examples=num_examples(200))
@given(size=st.integers(1, 300), at=st.integers(0, 299), gap=st.integers(0, 3), data=st.data())
def test_the_flag_is_set_exactly_where_a_finite_number_becomes_infinite(size: int, at: int, gap: int, data: st.DataObject) -> None:
    """Anywhere in a span of any length: a compiler may make loops of any width of it, and leave some numbers to another loop."""
    odd = data.draw(st.sampled_from([1e39, -1e39, TOP, -TOP, np.inf, -np.inf, np.nan, 0.0, 1e-300]))
    source = np.ones(3 * size + 2 * gap)
    source[size + gap + at % size] = odd
    starts, counts = np.array([0, size + gap]), np.array([size, size])
    target = np.zeros(2 * size, dtype=np.float32)
    places = np.array([0, size])
    expected = bool(np.isfinite(odd) and abs(odd) > TOP)
    assert padding.cast_spans(source, starts, counts, target, places) == expected
    assert not padding.cast_spans(source, starts[:1], counts[:1], target, places[:1]), "a flag of before is forgotten"
    ones = np.ones((2, 1))
    narrow = padding.scale_spans(source, starts, counts, np.array([0, 1]), ones, ones, target, places)
    assert narrow == expected
    wide = np.zeros(2 * size)
    centers = np.array([0.0, -np.finfo(np.float64).max])
    source[size + gap + at % size] = odd * 1e270
    for streaming in (False, True):
        found = padding.scale_rows(source, starts, counts, np.array([0, 1]), centers, np.ones(2), wide, places, streaming)
        assert found == bool(np.isfinite(odd * 1e270) and odd >= 1e39)


def test_where_the_flag_cannot_be_read_every_batch_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    clear, saw = _kernels.clear_overflow, _kernels.saw_overflow

    def clear_and_look() -> bool:
        clear()
        return bool(saw())

    assert njit(clear_and_look)() is False
    monkeypatch.setattr(_kernels, "_HAS_FLAGS", False)
    assert njit(clear_and_look)() is True

"""Blocks: sorting and joining segments, against the same done with lists."""

from __future__ import annotations

from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from stoker.store.pack.blocks import RowBlock, stable_order

Segment = tuple[Any, list[int]]
TEXTS = st.sampled_from(["", "a", "b", "ab", "B", "é", "\uffff", "\U0001f600"])
NUMBERS = st.sampled_from([-(2**63), -7, 0, 1, 2, 2**63 - 1])
UNSIGNED = st.sampled_from([0, 1, 2**63, 2**64 - 1])
KEYS = {"text": (TEXTS, pa.large_string()), "int64": (NUMBERS, pa.int64()), "uint64": (UNSIGNED, pa.uint64())}


@st.composite
def blocks(draw: st.DrawFn, min_size: int = 1) -> tuple[RowBlock, list[Segment], pa.DataType]:
    """A block, and its segments as (key, times)."""
    keys, kind = KEYS[draw(st.sampled_from(sorted(KEYS)))]
    times = st.lists(st.integers(0, 5), max_size=4)
    segments = draw(st.lists(st.tuples(keys, times), min_size=min_size, max_size=12))
    return make(segments, kind), segments, kind


def make(segments: list[Segment], kind: pa.DataType) -> RowBlock:
    """Step columns: the time, and a number that tells each row apart; per segment: its place, and a text."""
    times = [time for _, part in segments for time in part]
    return RowBlock(
        keys=pa.array([key for key, _ in segments], kind),
        counts=np.array([len(part) for _, part in segments], dtype=np.int64),
        step=[np.array(times, dtype=np.int64), np.arange(len(times), dtype=np.float32)],
        series=[np.arange(len(segments)), pa.array([str(i) for i in range(len(segments))], pa.large_string())],
    )


@given(
    hnp.arrays(
        st.sampled_from(["<i8", "<u8", "<i4", "<i2", "<u2", "|i1", "<f8"]),
        st.integers(0, 40),
        elements=None,
    )
)
def test_the_order_is_that_of_a_stable_sort(values: np.ndarray[Any, Any]) -> None:
    assert stable_order(values).tolist() == np.argsort(values, kind="stable").tolist()


SPANS = st.tuples(st.integers(0, 63), st.integers(1, 4), st.sampled_from(["<i8", "<u8", "<f8"]), st.booleans())


@given(st.integers(0, 200), st.lists(SPANS, min_size=1, max_size=3), st.integers(0, 2**32))
def test_the_order_by_several_keys_is_that_of_lexsort(count: int, spans: list[tuple[int, int, str, bool]], seed: int) -> None:
    rng, keys = np.random.default_rng(seed), []
    for bits, step, dtype, outlier in spans:
        values = rng.integers(0, 2**bits, count) // step * step
        if outlier and count:
            values[rng.integers(0, count)] = 2**63 - 1
        keys.append(values.astype(dtype))
    assert stable_order(*keys).tolist() == np.lexsort(keys[::-1]).tolist()


@pytest.mark.parametrize("low", [[3, 2, 1, 0], [0, 1, 2, 3]])
def test_rows_that_differ_in_dropped_bits_are_sorted_too(low: list[int]) -> None:
    times = np.array(low * 5000 + [2**62])
    keys = np.arange(len(times)) % 2
    assert stable_order(times).tolist() == np.argsort(times, kind="stable").tolist()
    assert stable_order(keys, times).tolist() == np.lexsort([times, keys]).tolist()

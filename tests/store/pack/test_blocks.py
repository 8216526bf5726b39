"""Blocks: sorting and joining segments, against the same done with lists."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from stoker.store.pack.blocks import RowBlock, concatenate, join_segments, sort_blocks, stable_order

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


def rows_of(block: RowBlock) -> list[tuple[Any, int, float]]:
    keys = np.repeat(np.arange(len(block.keys)), block.counts).tolist()
    names = block.keys.to_pylist()
    return [(names[i], t, x) for i, t, x in zip(keys, block.step[0].tolist(), block.step[1].tolist(), strict=True)]


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


@pytest.mark.parametrize(
    "values",
    [
        [-(2**63), 2**63 - 1, 0, -(2**63), -1],
        [5] * 7,
        [2**48, 0, 2**48, 2**32, 2**16, 0],
        [65_536, 65_535, 65_537, 65_536],
    ],
)
def test_the_order_holds_over_the_widest_span(values: list[int]) -> None:
    assert stable_order(np.array(values)).tolist() == sorted(range(len(values)), key=lambda i: values[i])
    unsigned = np.array([value % 2**64 for value in values], dtype=np.uint64)
    assert stable_order(unsigned).tolist() == sorted(range(len(values)), key=lambda i: int(unsigned[i]))


@given(blocks())
def test_sorting_brings_equal_keys_together_in_their_order(given: tuple[RowBlock, list[Segment], pa.DataType]) -> None:
    block, _, _ = given
    done = sort_blocks([block], None)
    assert rows_of(done) == sorted(rows_of(block), key=lambda row: row[0])
    order = sorted(range(len(block.keys)), key=lambda i: block.keys[i].as_py())
    assert done.keys.to_pylist() == [block.keys[i].as_py() for i in order]
    assert done.series[0].tolist() == order
    assert done.series[1].to_pylist() == [str(i) for i in order]


@given(st.lists(st.lists(st.tuples(NUMBERS, st.lists(st.integers(0, 5), max_size=3)), max_size=4), min_size=1, max_size=4))
def test_blocks_are_sorted_as_if_they_were_one(parts: list[list[Segment]]) -> None:
    made = [make(part, pa.int64()) for part in parts]
    for time in (None, 0):
        several, whole = sort_blocks(made, time), sort_blocks([concatenate(made)], time)
        assert rows_of(several) == rows_of(whole)
        assert several.series[1].to_pylist() == whole.series[1].to_pylist()


@given(blocks())
def test_with_a_time_rows_follow_it(given: tuple[RowBlock, list[Segment], pa.DataType]) -> None:
    block, _, _ = given
    done = join_segments(sort_blocks([block], 0))
    assert rows_of(done) == sorted(rows_of(block), key=lambda row: (row[0], row[1]))


@given(blocks())
def test_joining_keeps_all_rows_and_no_repeated_neighbour(given: tuple[RowBlock, list[Segment], pa.DataType]) -> None:
    block, _, _ = given
    done = join_segments(block)
    assert rows_of(done) == rows_of(block)
    keys = done.keys.to_pylist()
    assert all(a != b for a, b in itertools.pairwise(keys))
    assert done.counts.sum() == block.counts.sum()


@given(st.lists(st.lists(st.tuples(NUMBERS, st.lists(st.integers(0, 5), max_size=3)), max_size=4), min_size=1, max_size=4))
def test_blocks_end_to_end_hold_all_rows(parts: list[list[Segment]]) -> None:
    made = [make(part, pa.int64()) for part in parts]
    joined = concatenate(made)
    assert [(key, t) for key, t, _ in rows_of(joined)] == [(key, t) for part in made for key, t, _ in rows_of(part)]
    assert joined.series[1].to_pylist() == [text for part in made for text in part.series[1].to_pylist()]


@given(blocks())
def test_whether_a_block_is_in_order(given: tuple[RowBlock, list[Segment], pa.DataType]) -> None:
    block, segments, _ = given
    keys = [key for key, _ in segments]
    rises = all(a < b for a, b in itertools.pairwise(keys))
    in_time = all(a <= b for _, times in segments for a, b in itertools.pairwise(times))
    assert block.rises() == rises
    assert block.rises(0) == (rises and in_time)

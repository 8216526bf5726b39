"""Runs against sorted lists."""

from __future__ import annotations

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tests.encode.statistics.twin import keys_in, listed, run_of

from stoker.encode.statistics.quantiles import KeyRun

WORDS = st.lists(st.integers(0, 5) | st.integers(0, 2**64 - 1) | st.integers(2**63 - 300, 2**63 + 300), max_size=60)


@given(WORDS)
def test_a_run_is_the_sorted_keys(values: list[int]) -> None:
    run = KeyRun.of(keys_in(values))
    assert run.keys.tolist() == sorted(set(values))
    assert listed(run) == sorted(values)
    assert run.num_values == len(values)
    assert run.once == (len(set(values)) == len(values))


@pytest.mark.parametrize("bits", [1, 8, 9, 17, 33, 48, 64])
def test_keys_of_any_width_are_sorted(bits: int, rng: np.random.Generator) -> None:
    values = rng.integers(0, 2**bits - 1, 5000, dtype=np.uint64, endpoint=True) << np.uint64(rng.integers(0, 65 - bits))
    expected, counts = np.unique(values, return_counts=True)
    run = KeyRun.of(values.copy())
    assert (run.keys == expected).all()
    assert (run.counts == counts).all()


@given(WORDS, WORDS)
def test_runs_merge_into_the_run_of_both(one: list[int], other: list[int]) -> None:
    merged = run_of(one).merge(run_of(other))
    assert listed(merged) == sorted(one + other)
    assert merged.keys.tolist() == sorted(set(one + other))


@given(WORDS, st.data())
def test_positions_and_parts(values: list[int], data: st.DataObject) -> None:
    run = run_of(values)
    assert run.at(np.arange(len(values))).tolist() == sorted(values)
    start = data.draw(st.integers(0, len(values)))
    stop = data.draw(st.integers(start, len(values)))
    assert listed(run.cut(start, stop)) == sorted(values)[start:stop]
    places = np.arange(len(run) + 1)
    assert run.before(places).tolist() == [sum(value in run.keys[:place].tolist() for value in values) for place in places]

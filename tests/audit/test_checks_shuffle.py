"""Measures of order, against their obvious definitions."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

from stoker.audit.checks import measure, recurrence


@given(data=st.data())
@settings(max_examples=num_examples(60))
def test_measures_are_those_of_the_slow_twin(data: st.DataObject) -> None:
    num = data.draw(st.integers(2, 80))
    order = np.array(data.draw(st.permutations(range(num))))
    order[data.draw(st.lists(st.integers(0, num - 1), max_size=5))] = -1
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=num, max_size=num))
    starts = np.minimum(np.cumsum([0, *sizes]), num)
    starts = np.concatenate([starts[starts < num], [num]])
    found = measure(order, starts, num)
    batches = [[n for n in order[a:b].tolist() if n >= 0] for a, b in itertools.pairwise(starts)]
    known = [n for n in order.tolist() if n >= 0]
    steps = Counter(b - a for a, b in itertools.pairwise(known))
    assert found.num_samples == len(known)
    assert found.step_share == pytest.approx(max(steps.values(), default=0) / max(len(known) - 1, 1))
    assert steps[found.step] == max(steps.values(), default=0)
    if max(map(len, batches), default=0) < 2:
        return  # single samples are taken together in groups
    deviations = [(len(batch) - 1) * np.var(batch, ddof=1) for batch in batches if len(batch) > 1]
    within = sum(deviations) / sum(len(batch) - 1 for batch in batches if len(batch) > 1)
    assert found.spread == pytest.approx(np.sqrt(within / np.var(np.arange(num), ddof=1)))


def test_the_error_is_that_of_many_shuffles(rng: np.random.Generator) -> None:
    num, size = 5000, 10
    starts = np.arange(0, 401, size)
    found = [measure(rng.permutation(num)[:400], starts, num) for _ in range(400)]
    squares = np.array([order.spread**2 for order in found])
    assert abs(squares.mean() - 1) < 5 * found[0].error / np.sqrt(len(found))
    assert 0.8 < squares.std() / found[0].error < 1.2
    assert not any(order.clustered or order.stepped for order in found)


def test_recurrence_counts_followers() -> None:
    order = np.random.default_rng(0).permutation(100)
    assert recurrence(order, order, np.ones(100, int)).share == 1
    assert recurrence(order, np.roll(order, 30), np.ones(100, int)).number == 98
    assert recurrence(order, order[::-1].copy(), np.ones(100, int)).number == 0
    assert recurrence(order, order, None).share == 1
    both = np.ones(100, int)
    both[order[::2]] = 2  # samples of equal content have no place of their own
    assert recurrence(order, order, both).num_compared == 50

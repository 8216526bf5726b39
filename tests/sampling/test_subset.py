"""Subsets: runs of numbers find what a list of them finds."""

from __future__ import annotations

import pickle

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from stoker.sampling.subset import Runs, Subset
from stoker.sampling.views import Lengths, Sequences, Windows

numbers = st.lists(st.integers(0, 60), min_size=1, unique=True).map(sorted)


@given(listed=numbers, asked=st.lists(st.integers(0, 70)))
def test_runs_are_a_list(listed: list[int], asked: list[int]) -> None:
    runs = Runs.of(np.array(listed))
    assert runs.size == len(listed)
    assert runs.resolve(np.arange(len(listed))).tolist() == listed
    assert runs.count_below(np.array(asked, dtype=np.int64)).tolist() == [sum(one < number for one in listed) for number in asked]
    apart = [number for number in listed if number - 1 not in listed]
    assert runs.firsts.tolist() == apart, "runs that touch are one"


def subset_of(view: object, listed: list[int], num_all: int) -> Subset:
    runs = Runs.of(np.array(listed))
    return Subset(name="train", origin="a test", view=view, data="d", runs=runs, num_all=num_all, whole_series=False)


@given(data=st.data(), lengths=st.lists(st.integers(0, 12), min_size=1, max_size=6), stride=st.integers(1, 6))
def test_samples_of_a_part(data: st.DataObject, lengths: list[int], stride: int) -> None:
    offsets = np.concatenate([[0], np.cumsum([*lengths, 9])])
    where = Lengths(num_series=len(lengths) + 1, num_steps=int(offsets[-1]), offsets=offsets)
    view = data.draw(st.sampled_from([Windows(3, stride=stride), Sequences(5)]))
    samples = view.over(where)
    listed = sorted(data.draw(st.sets(st.integers(0, samples.num_samples - 1), min_size=1)))
    subset = subset_of(view, listed, samples.num_samples).over(samples)
    found, expected = subset.locate(np.arange(subset.num_samples)), samples.locate(np.array(listed))
    assert all(np.array_equal(one, other) for one, other in zip(found, expected, strict=True))
    firsts = subset.first_samples()
    assert firsts is not None
    assert np.diff(firsts).tolist() == [int((expected.series == one).sum()) for one in range(len(offsets) - 1)]
    held = {(series, step) for series, start, count in zip(*expected, strict=True) for step in range(start, start + count)}
    if isinstance(view, Sequences) or stride <= 3:
        ranges = [one for several in subset.step_ranges() for one in zip(*several, strict=True)]
        assert {(series, step) for series, start, stop, _ in ranges for step in range(start, stop)} == held


def test_a_part_travels_to_other_processes() -> None:
    subset = subset_of(Windows(3), [1, 2, 5], 9)
    again = pickle.loads(pickle.dumps(subset))
    assert again.fingerprint == subset.fingerprint
    assert again.runs.resolve(np.arange(3)).tolist() == [1, 2, 5]

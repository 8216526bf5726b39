"""split.where: the samples of the chosen series, of all samples, of a subset, or of each subset of a split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

import stoker
from stoker.errors import OptionError
from stoker.sampling.subset import Runs
from stoker.split import selection


def store_of(lengths: list[int], flags: list[int]) -> stoker.Store:
    steps = [np.full(n, float(i)) for i, n in enumerate(lengths)]
    return stoker.Store.from_arrays(x=steps, flag=np.array([[flag, 0] for flag in flags]), name=[f"s{flag}" for flag in flags])


@pytest.mark.promise("P25")
@settings(deadline=None, max_examples=num_examples(40))
@given(data=st.data())
def test_samples_are_those_of_both_sets(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    sets = [sorted(data.draw(st.sets(st.integers(0, count)))) for _ in range(2)]
    one, other = (Runs.of(np.array(numbers, dtype=np.int64)) for numbers in sets)
    common = selection._common(one, other)
    expected = sorted(set(sets[0]) & set(sets[1]))
    assert common.resolve(np.arange(common.size)).tolist() == expected


def test_a_view_a_subset_and_a_split_are_filtered() -> None:
    store, view = store_of([30, 30, 30, 30], [0, 1, 0, 1]), stoker.Windows(4)
    chosen = stoker.split.where(store, view, "name == 's1'")
    assert len(chosen) == 2 * 27
    assert chosen.whole_series
    split = stoker.split.chronological(store, view, fractions=(0.5, 0.5))
    both = stoker.split.where(store, split, "name == 's1'")
    assert [len(one) * 2 for one in both] == [len(one) for one in split]
    train = stoker.split.where(store, split.train, "name == 's1'")
    assert train.fingerprint == both.train.fingerprint
    assert train.name == "train"
    stoker.split.check(both)
    feed = stoker.Feed(store, view, subset=train, batch_size=8, columns=["x"], device="cpu")
    assert {float(value) for batch in feed for value in batch["x"].unique()} == {1.0, 3.0}
    scaler = stoker.split.Scaler.fit(store, train, columns=["x"])
    assert scaler.mean.tolist() == [2.0]


def test_what_leaves_nothing_or_is_of_other_data_is_refused() -> None:
    store, view = store_of([30, 3], [0, 1]), stoker.Windows(4, tail="drop")
    with pytest.raises(OptionError, match=r"leaves no sample of <memory>: 1 of 2 series fulfil it"):
        stoker.split.where(store, view, "name == 's1'")
    other = stoker.split.where(store_of([31, 3], [0, 1]), view, "name == 's0'")
    with pytest.raises(OptionError, match="is of other data than this store"):
        stoker.split.where(store, other, "name == 's0'")

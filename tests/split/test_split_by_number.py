"""Splits by numbers: samples that share steps are found wherever they come from."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given as given_cases
from hypothesis import settings
from tests.harness import num_examples
from tests.split import twin
from tests.split.stores import plain
from tests.split.test_split_by_time import views

from stoker import Windows
from stoker.errors import LeakError
from stoker.split import check, given


@settings(max_examples=num_examples(150))
@given_cases(
    lengths=st.lists(st.integers(0, 25), min_size=1, max_size=4),
    view=views,
    beyond=st.integers(0, 3),
    warm_up=st.integers(0, 4),
    data=st.data(),
)
def test_a_shared_step_is_found_by_the_guard_where_a_loop_finds_one(
    lengths: list[int], view: Any, beyond: int, warm_up: int, data: st.DataObject
) -> None:
    store = plain([*lengths, 30])
    size = len(twin.list_samples(store, view))
    owners = data.draw(st.lists(st.sampled_from(["train", "valid", "test", "none", "none"]), min_size=size, max_size=size))
    subsets = {name: [i for i, owner in enumerate(owners) if owner == name] for name in ("train", "valid", "test")}
    subsets = {name: numbers for name, numbers in subsets.items() if numbers} or {"train": [0]}
    horizon = getattr(view, "windows", view).span - view.length + beyond
    with pytest.warns(UserWarning, match="allow_leak=True"):
        split = given(store, view, subsets, horizon=horizon, warm_up=warm_up, allow_leak=True)
    assert twin.numbers_of(split) == subsets
    assert split.leaks
    shared = twin.shared_steps(twin.steps_of(split, store, view, horizon=horizon, warm_up=warm_up))
    if not shared:
        given(store, view, subsets, horizon=horizon, warm_up=warm_up)
        return
    with pytest.raises(LeakError, match="is in two subsets") as found:
        given(store, view, subsets, horizon=horizon, warm_up=warm_up)
    words = str(found.value).replace(",", "").split()
    assert (int(words[4]), int(words[1])) in shared, "the step that is named is one of them"
    with pytest.raises(LeakError):
        check(split)


def test_as_scikit_learn_gives_them() -> None:
    """Numbers of a splitter with a gap, as arrays."""
    store = plain([100])
    split = given(store, Windows(5, tail="drop"), {"train": np.arange(0, 50), "valid": np.arange(54, 96)})
    assert len(split.train) == 50
    with pytest.raises(LeakError, match="step 53 of series 0"):
        given(store, Windows(5, tail="drop"), {"train": np.arange(0, 50), "valid": np.arange(53, 96)})

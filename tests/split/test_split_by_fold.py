"""Folds: each step is in the valid subset of one fold, and what is trained on shares none with it, on either side."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings
from tests.harness import num_examples
from tests.split import twin
from tests.split.stores import plain, timed
from tests.split.test_split_by_time import lengths, options_of, reaches, views

from stoker import Windows
from stoker.split import check, purged


@settings(max_examples=num_examples(80))
@given(lengths=lengths, view=views, margins=reaches, folds=st.integers(2, 4), forward=st.booleans())
def test_folds_are_what_a_loop_finds(lengths: list[int], view: Any, margins: Any, folds: int, forward: bool) -> None:
    store, options = plain(lengths), options_of(view, margins)
    found = purged(store, view, folds=folds, forward=forward, **options)
    check(found)
    assert len(found) == folds - forward
    cuts = [[length * fold // folds for fold in range(folds + 1)] for length in lengths]
    for fold, split in enumerate(found, start=int(forward)):
        after = [] if forward else [(fold + 1, folds)]
        train = [(low, high) for low, high in [(0, fold), *after] if low < high]
        expected = twin.split_samples(store, view, cuts, {"train": train, "valid": [(fold, fold + 1)]}, **options)
        assert twin.numbers_of(split) == expected.subsets
        assert (split.excluded.purged, split.excluded.embargoed) == (expected.purged, expected.embargoed)
        reach_only = {"horizon": options["horizon"], "warm_up": options["warm_up"]}
        assert not twin.shared_steps(twin.steps_of(split, store, view, **reach_only))


def test_walking_forward_trains_on_the_past_only() -> None:
    store = timed([list(range(0, 100)), list(range(50, 150))])
    for split in purged(store, Windows(3), folds=5, forward=True, time="t"):
        steps = twin.steps_of(split, store, Windows(3))
        times = {name: [step + 50 * series for series, step in found] for name, found in steps.items()}
        assert max(times["train"]) < min(times["valid"])

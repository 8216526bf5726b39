"""Runs of packed rows, and what is seen within them."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

from stoker_recipes.time_moe.layers import runs_of, seen_within


@settings(max_examples=num_examples(60), deadline=None)
@given(st.lists(st.lists(st.integers(-1, 2), min_size=9, max_size=9), min_size=1, max_size=3))
def test_runs_are_ranges_of_equal_segments(rows: list[list[int]]) -> None:
    runs = runs_of(torch.tensor(rows))
    seen = seen_within(runs)
    for number, row in enumerate(rows):
        for at in range(len(row)):
            begin = max(s for s in range(at + 1) if len(set(row[s : at + 1])) == 1 and (s == 0 or row[s - 1] != row[s]))
            end = next((s for s in range(at, len(row)) if row[s] != row[at]), len(row))
            assert (int(runs.begins[number, at]), int(runs.ends[number, at])) == (begin, end)
            assert int(runs.positions[number, at]) == at - begin
            assert seen[number, 0, at].nonzero().flatten().tolist() == list(range(begin, at + 1))

"""Layers on the CPU: grouped products, ranges of attention, and routing to experts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

from stoker_recipes.time_moe import Size, TimeMoe
from stoker_recipes.time_moe.layers import num_rows, runs_of, seen_within, sort_plainly

pytestmark = [  # torch warns of what it does itself as it traces
    pytest.mark.filterwarnings("ignore:The .grad attribute"),
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
]
ONE_LAYER = Size(hidden=16, intermediate=16, layers=1, heads=2, experts=3, top_k=2, horizons=(1, 4))


@pytest.mark.parametrize("packed", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_model_is_traced_as_one_graph(packed: bool) -> None:
    """Traced with gradients, and run as traced; which code comes of it is not looked at here."""
    torch.manual_seed(0)
    model = TimeMoe(ONE_LAYER)
    x, y = torch.randn(2, 20), torch.randn(2, 20)
    segments = torch.tensor([[0] * 12 + [1] * 8, [0] * 20])
    given = (x, y, None, segments) if packed else (x, y, torch.tensor([20, 7]))
    found = []
    for one in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        model.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not packed):
            loss = one(*given)
        loss.backward()
        found.append((loss.detach(), *(weight.grad for weight in model.parameters())))
    torch.testing.assert_close(*found, rtol=1e-5 if packed else 1e-2, atol=1e-7 if packed else 1e-3)


def test_compiling_in_place_leaves_names_and_results() -> None:
    torch.manual_seed(0)
    model = TimeMoe(ONE_LAYER)
    x, y, names = torch.randn(2, 20), torch.randn(2, 20), list(model.state_dict())
    before = model.loss(x, y)
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(model.loss(x, y), before)
    assert list(model.state_dict()) == names


# Runs of packed rows, and what is seen within them


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


# Routing: every choice has a row of its expert, filler counts nowhere, and gathers are each other's gradients


@settings(max_examples=num_examples(60), deadline=None)
@given(st.integers(1, 6), st.integers(1, 3), st.lists(st.integers(0, 5), min_size=1, max_size=80), st.sampled_from([1, 4, 8]))
def test_rows_are_choices_sorted_by_expert(num_experts: int, k: int, drawn: list[int], tile: int) -> None:
    experts = torch.tensor(drawn * k).reshape(-1, k) % num_experts
    choice, row, ends, counts = sort_plainly(experts, num_experts, tile)
    flat = experts.reshape(-1).tolist()
    assert len(choice) == num_rows(len(flat), num_experts, tile)
    assert int(ends[-1]) <= len(choice)
    assert [int(choice[place]) for place in row.reshape(-1)] == list(range(len(flat)))
    begin = 0
    for expert, end in enumerate(ends.tolist()):
        mine = [one for one in choice[begin:end].tolist() if one >= 0]
        assert mine == [number for number, one in enumerate(flat) if one == expert]
        assert counts[expert] == len(mine)
        assert end - begin == max(1, -(-len(mine) // tile)) * tile
        begin = end
    assert (choice[begin:] == -1).all()

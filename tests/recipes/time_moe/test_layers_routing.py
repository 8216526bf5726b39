"""Routing: every choice has a row of its expert, filler counts nowhere, and gathers are each other's gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import num_examples

from stoker_recipes.time_moe.layers import num_rows, route, sort_plainly


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


@pytest.fixture
def experts() -> torch.Tensor:
    return torch.randint(0, 5, (20, 2), generator=torch.Generator().manual_seed(0))


def test_moves_are_what_they_say(experts: torch.Tensor) -> None:
    routing = route(experts, 5)
    x, shares = torch.randn(20, 3), torch.rand(20, 2)
    rows, spread = routing.gather(x), routing.spread(shares)
    for row, choice in enumerate(routing.choice.tolist()):
        if choice >= 0:
            assert torch.equal(rows[row], x[choice // 2])
            assert spread[row] == shares.reshape(-1)[choice]
        else:
            assert spread[row] == 0
    torch.testing.assert_close(routing.combine(rows), 2 * x)


@pytest.mark.parametrize("move", ["gather", "combine", "spread"])
def test_gradients_of_moves(experts: torch.Tensor, move: str) -> None:
    routing = route(experts, 5)
    shape = {"gather": (20, 2), "combine": (len(routing.choice), 2), "spread": (20, 2)}[move]
    given = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    is_real = (routing.choice >= 0).double()

    def moved(x: torch.Tensor) -> torch.Tensor:  # what filler holds is never used, so its gradient may be anything
        if move == "combine":
            return routing.combine(x * is_real.unsqueeze(1))
        found: torch.Tensor = getattr(routing, move)(x)
        return found * (is_real.unsqueeze(1) if found.dim() == 2 else is_real)

    assert torch.autograd.gradcheck(moved, (given,))

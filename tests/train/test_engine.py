"""The stream of a training run, and snapshots: what is measured before the first step leaves no trace."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from stoker.errors import CheckpointInvalidError
from stoker.train import state_dict
from stoker.train.engine import Snapshot, Stream

CPU = torch.device("cpu")


def seed() -> None:
    state_dict.seed_all(3)


def test_a_loader_that_refuses_its_state_is_one_line() -> None:
    class Refuses(list[int]):
        def state_dict(self) -> int:
            return 1

        def load_state_dict(self, state: Any) -> None:
            raise KeyError("no\nsuch epoch")

    with pytest.raises(CheckpointInvalidError, match="refuse their saved state") as caught:
        Stream(Refuses([1]), CPU).resume(1, taken=1)
    assert "\n" not in str(caught.value)


class Counts(nn.Module):
    """A model that changes a weight, a buffer, an attribute, a list and a dictionary in each forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.calls, self.seen, self.means = 0, deque([1]), {"mean": torch.zeros(2)}

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.means["mean"] += 1
        self.last = x.detach().sum()
        out: Tensor = nn.functional.dropout(self.norm(self.linear(x)), 0.5)
        return out


def one_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(4, 2) * torch.arange(4.0)[:, None]).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize("steps_before", [0, 2])
def test_a_snapshot_puts_everything_back(steps_before: int) -> None:
    seed()
    model = Counts()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps_before):
        one_step(model, optimizer)
    seen = model.seen
    before = Snapshot(model, optimizer)
    kept, digest = (model.calls, list(model.seen), model.means["mean"].clone(), torch.get_rng_state()), before.digest()
    one_step(model, optimizer)
    assert before.digest() != digest
    before.restore()
    assert before.digest() == digest
    assert (model.calls, list(model.seen)) == kept[:2]
    assert model.seen is seen, "others may hold it"
    assert torch.equal(model.means["mean"], kept[2])
    assert torch.equal(torch.get_rng_state(), kept[3])
    assert hasattr(model, "last") == bool(steps_before)
    assert bool(optimizer.state) == bool(steps_before)


def test_a_snapshot_for_a_graph_leaves_tensors_where_they_are() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = Snapshot(model, optimizer)
    one_step(model, optimizer)
    kept = {id(value) for state in optimizer.state.values() for value in state.values()}
    before.restore(for_graph=True)
    assert {id(value) for state in optimizer.state.values() for value in state.values()} == kept
    assert all(not value.any() for state in optimizer.state.values() for value in state.values())

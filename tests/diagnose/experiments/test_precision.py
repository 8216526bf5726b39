"""Computing in shorter types: what is converted, and given back."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.diagnose.experiments.samples import losses
from torch import nn

from stoker.diagnose.experiments.precision import Autocast, Float32, Tf32
from stoker.diagnose.experiments.threads import Threads


def test_autocast_computes_in_bfloat16_and_gives_float32() -> None:
    fix = Autocast()
    seen = []

    class Watched(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            out = super().forward(input)
            seen.append(out.dtype)
            return out

    model = nn.Sequential(Watched(4, 4))
    fix.begin([model], None)
    assert model(torch.ones(2, 4)).dtype is torch.float32
    assert seen == [torch.bfloat16]
    assert losses(Autocast()) == pytest.approx(losses(None), rel=0.05)


def test_float32_halves_weights_state_and_batches_and_gives_them_back(request: pytest.FixtureRequest) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2).double()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = {"x": torch.randn(3, 4, dtype=torch.float64), "n": torch.arange(3)}

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step(batch)
    before = [weight.detach().clone() for weight in model.parameters()]
    fix = Float32()
    request.addfinalizer(fix.remove)
    [changed] = fix.on([model], optimizer, [batch])
    assert fix.used
    assert changed["x"].dtype is torch.float32
    assert changed["n"].dtype is torch.int64
    assert step(changed).dtype is torch.float32
    fix.remove()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    assert step(batch).dtype is torch.float64
    untouched = Float32()
    untouched.on([nn.Linear(2, 2)], None, [])
    assert not untouched.used


def test_float32_also_works_where_the_loop_takes_samples_from_a_tensor() -> None:
    """Its batches are rows of indices; the model gets float64 from somewhere else."""
    model, table = nn.Linear(4, 1).double(), torch.ones(8, 4, dtype=torch.float64)
    fix = Float32()
    [rows] = fix.on([model], None, [torch.tensor([1, 2])])
    assert model(table[rows]).dtype is torch.float32
    assert model(input=table[rows]).dtype is torch.float32
    fix.remove()
    assert model(table[rows]).dtype is torch.float64


def test_flags_of_torch_are_put_back() -> None:
    before = (torch.get_float32_matmul_precision(), torch.get_num_threads())
    for fix in (Tf32(), Threads(before[1] + 1)):
        fix.begin([nn.Conv1d(1, 1, 1)], None)
        assert fix.used
        assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) != before
        fix.remove()
        assert (torch.get_float32_matmul_precision(), torch.get_num_threads()) == before

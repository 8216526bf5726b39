"""Stale calls: which call is the same, and how much is kept; what `remove` puts back."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.diagnose.experiments.samples import StepNumber
from torch import nn

from stoker.diagnose.experiments import base
from stoker.diagnose.experiments.copies import WithoutCopies
from stoker.diagnose.experiments.pinned import Pinned
from stoker.diagnose.experiments.precision import Autocast
from stoker.diagnose.experiments.reads import WithoutReads


def test_a_tensor_of_another_shape_or_type_is_another_call(reads: WithoutReads, clock: StepNumber) -> None:
    reads.install()
    values = []
    for tensor in (torch.tensor([1, 2]), torch.tensor([1, 2, 3]), torch.tensor([1.5, 2.5])):
        values.append(tensor.tolist())
        clock.step += 1
    assert values == [[1, 2], [1, 2, 3], [1.5, 2.5]]


def test_no_more_than_a_gigabyte_is_kept(clock: StepNumber, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "MAX_KEPT_BYTES", 100)
    copies = WithoutCopies(clock)
    copies.install()
    small, large = torch.zeros(10), torch.zeros(100)
    kept = []
    for _ in range(2):
        kept.append([tensor.to("meta") for tensor in (small, large)])
        clock.step += 1
    copies.remove()
    assert kept[0][0] is kept[1][0]
    assert kept[0][1] is not kept[1][1]


def test_what_was_inherited_is_inherited_again() -> None:
    fix, model = Autocast(), nn.Linear(4, 4)
    fix.begin([model], None)
    assert "forward" in vars(model)
    fix.remove()
    assert "forward" not in vars(model)
    pinned = Pinned()
    assert pinned.on([], None, [{"x": np.ones(3)}]) == [{"x": pytest.approx(np.ones(3))}]
    assert "to" in vars(torch.Tensor)
    pinned.remove()
    assert "to" not in vars(torch.Tensor)
    assert not pinned.used

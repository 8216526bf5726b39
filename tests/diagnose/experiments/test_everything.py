"""All suspects are removed together, and put back."""

from __future__ import annotations

import torch
from tests.diagnose.experiments.samples import StepNumber

from stoker.diagnose.experiments.copies import WithoutCopies
from stoker.diagnose.experiments.everything import WithoutAll
from stoker.diagnose.experiments.reads import WithoutReads


def test_everything_leaves_no_patch(clock: StepNumber) -> None:
    names = {*WithoutReads.methods, *WithoutCopies.methods}
    before = {name: torch.Tensor.__dict__.get(name) for name in names}
    everything = WithoutAll(clock)
    for _ in range(3):  # it is switched on in several windows
        assert everything.on([torch.nn.Linear(2, 2)], None, ["batch"]) == ["batch"]
        assert {name: torch.Tensor.__dict__.get(name) for name in names} != before
        everything.remove()
        assert {name: torch.Tensor.__dict__.get(name) for name in names} == before

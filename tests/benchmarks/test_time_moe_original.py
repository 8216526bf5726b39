"""The authors' way, written anew, has the official names, and the recipe's loss and gradients."""

from __future__ import annotations

import torch
from benchmarks.before.time_moe_original import OriginalTimeMoe

from stoker_recipes.time_moe import SIZES, TimeMoe
from stoker_recipes.time_moe.model import to_official


def test_loss_and_gradients_are_those_of_the_recipe() -> None:
    torch.manual_seed(0)
    ours, theirs = TimeMoe(SIZES["tiny"]), OriginalTimeMoe(SIZES["tiny"])
    theirs.load_state_dict(to_official(ours.state_dict(), ours.size))
    series = torch.randn(3, 41)
    x, y, mask = series[:, :-1], series[:, 1:], torch.arange(40) < torch.tensor([[40], [7], [33]])
    losses = ours.loss(x, y, mask), theirs(x, y, mask.int())
    torch.testing.assert_close(*losses)
    for loss in losses:
        loss.backward()
    gradients = to_official({name: weight.grad for name, weight in ours.named_parameters()}, ours.size)
    for name, weight in theirs.named_parameters():
        wanted = torch.zeros_like(weight) if weight.grad is None else weight.grad
        torch.testing.assert_close(gradients[name], wanted, rtol=1e-3, atol=1e-6)

"""Trials as people run them: one after the other, each with its own model, optimizer and training loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn


def start(
    make_model: Callable[[Mapping[str, Any]], nn.Module],
    loss: Callable[[nn.Module, Any], torch.Tensor],
    config: Mapping[str, Any],
    *,
    seed: int,
    device: str = "cpu",
) -> Callable[[Any], torch.Tensor]:
    """A trial; the function that is returned does a step of its loop."""
    torch.manual_seed(seed)
    model = make_model(config).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"], weight_decay=config["weight_decay"])

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        value = loss(model, batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return step

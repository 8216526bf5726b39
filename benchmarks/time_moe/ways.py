"""The two ways to train Time-MoE: the recipe's, by the trainer, and its authors'."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import stoker
from benchmarks.before.time_moe_original import OriginalTimeMoe
from benchmarks.time_moe.setting import DEVICE, ON_GPU
from stoker_recipes.time_moe import TimeMoe, time_moe_loss

RECIPE = {"lr": 1e-4, "betas": (0.9, 0.95), "weight_decay": 0.1}


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    """Each point from those before it."""
    return time_moe_loss(model, {"x": batch["x"][:, :-1], "y": batch["x"][:, 1:]})


def trainer_of(
    model: TimeMoe,
    precision: str,
    *,
    loss: Callable[[nn.Module, dict[str, Tensor]], Tensor] = loss_of,
    callbacks: Iterable[Any] = (),
    log_every: int = 10,
    whole: bool = False,
) -> stoker.Trainer:
    """The recipe's steps: layers compiled, the step a graph."""
    if ON_GPU and not whole:
        model.compile(dynamic=False)
    return stoker.Trainer(
        model,
        loss,
        torch.optim.AdamW(model.parameters(), fused=True, **RECIPE),
        precision=precision,
        execution=stoker.train.Execution(graph=ON_GPU, compile=whole),
        max_grad_norm=1.0,
        callbacks=list(callbacks),
        logging=stoker.train.Logging(every=log_every),
        progress=False,
    )


def original_steps(model: OriginalTimeMoe, batches: Iterator[dict[str, Tensor]], *, precision: str) -> Iterator[Tensor]:
    """The authors' loop: eager, foreach AdamW, the loss read by the caller."""
    optimizer = torch.optim.AdamW(model.parameters(), **RECIPE)
    for batch in batches:
        x, y = batch["x"][:, :-1], batch["x"][:, 1:]
        yield original_step(model, optimizer, x, y, torch.ones_like(x, dtype=torch.int32), precision=precision)


def original_step(
    model: OriginalTimeMoe, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, mask: Tensor, *, precision: str
) -> Tensor:
    """One step of it."""
    optimizer.zero_grad()
    with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=precision == "bf16"):
        loss: Tensor = model(x, y, mask)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss.detach()

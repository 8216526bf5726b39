"""Small training runs: data, models and the plainest loop, which the trainer must equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from stoker import Trainer
from stoker.train import Checkpoints, Execution, Logging

Pair = tuple[torch.Tensor, torch.Tensor]
PLAIN = {"precision": "fp32", "graph": False, "compile": False, "progress": False}
"""Options that leave nothing to be measured."""
GROUPS: Any = {"execution": Execution, "checkpoints": Checkpoints, "logging": Logging}


def grouped(options: dict[str, Any]) -> dict[str, Any]:
    """Options of a trainer, of which those of groups may be given flat; `save_every` and `log_every` are `every` of theirs."""
    flat = {name: value for name, value in options.items() if name not in ("save_every", "log_every")}
    inner: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for group, kind in GROUPS.items():
        inner[group] = {name: flat.pop(name) for name in kind.__struct_fields__ if name in flat and name != "every"}
    for group, name in (("checkpoints", "save_every"), ("logging", "log_every")):
        inner[group] |= {"every": options[name]} if name in options else {}
    return {**{group: GROUPS[group](**values) for group, values in inner.items() if values}, **flat}


def pairs(num_batches: int = 12, *, rows: int = 16, seed: int = 0) -> list[Pair]:
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(num_batches):
        x = torch.randn(rows, 6, generator=generator)
        made.append((x, x[:, :1] - x[:, 1:2] + 0.1 * torch.randn(rows, 1, generator=generator)))
    return made


def network(seed: int = 0, *, norm: bool = False, dropout: float = 0.0) -> nn.Sequential:
    torch.manual_seed(seed)
    layers: list[nn.Module] = [nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 1)]
    return nn.Sequential(nn.BatchNorm1d(6), *layers) if norm else nn.Sequential(*layers)


def adamw(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, "fused": True, **options})


def plain_loop(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: Sequence[Pair], *, epochs: int, clip: float | None = None
) -> None:
    """What everybody writes."""
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()


def trainer_of(model: nn.Module, loss: Any = None, optimizer: Any = None, **options: Any) -> Trainer:
    return Trainer(model, loss or nn.MSELoss(), optimizer or adamw(model), **grouped({**PLAIN, **options}))


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True))


class Kept:
    """A writer that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []

    def write(self, step: int, values: Any) -> None:
        self.lines.append((step, dict(values)))

    def close(self) -> None:
        pass

    def losses(self) -> list[float]:
        return [values["loss"] for _, values in self.lines if "loss" in values]

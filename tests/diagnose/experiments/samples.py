"""Numbers of steps, datasets, epochs and training runs that tests of fixes share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from stoker.diagnose.experiments.base import Fix


class StepNumber:
    """The number of the current step."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self) -> int:
        return self.step


class Pairs(torch.utils.data.Dataset[Any]):
    """Samples that are made one by one."""

    def __init__(self, count: int = 40) -> None:
        self.texts = [f"{number},{number + 0.5}" for number in range(count)]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, number: int) -> tuple[torch.Tensor, float]:
        a, b = self.texts[number].split(",")
        return torch.tensor([float(a), float(b)]), float(b)


class Endless(IterableDataset[int]):
    """Samples without numbers."""

    def __iter__(self) -> Any:
        return iter(range(8))


def epoch(dataset: Any, **options: Any) -> list[Any]:
    torch.manual_seed(3)
    return list(DataLoader(dataset, **{"batch_size": 6, "shuffle": True, **options}))


def installed(fix: Fix, request: pytest.FixtureRequest) -> Fix:
    request.addfinalizer(fix.remove)
    fix.install()
    return fix


def losses(fix: Fix | None, optimizer: Any = torch.optim.AdamW, **options: Any) -> list[float]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    stepper = optimizer(model.parameters(), lr=1e-2, **options)
    if fix is not None:
        fix.begin([model, nn.MSELoss()], stepper)
    kept = []
    for _ in range(5):
        x = torch.randn(32, 6)
        loss = (model(x) - x[:, :1]).square().mean()
        stepper.zero_grad()
        loss.backward()
        stepper.step()
        kept.append(loss.item())
    return kept

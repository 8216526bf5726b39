"""What does a training step of a trial cost on two CPU cores, alone in a plain loop and as a member of a population?

Process CPU time, in turns. The losses of all trials are compared.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from benchmarks import record
from benchmarks.before import trials_one_by_one
from stoker.tune import Population

QUESTION = "What does a training step of a trial cost on two CPU cores, alone in a plain loop and as a member of a population?"
SIZES = (1, 4, 16, 64)


class Mlp(nn.Module):
    """Two residual blocks on 8 features."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inp = nn.Linear(8, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(2)
        )
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inp(x)
        for block in self.blocks:
            x = x + block(x)
        out: torch.Tensor = self.head(x)
        return out


class Transformer(nn.Module):
    """Two layers on windows of 16 rows."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.inp = nn.Linear(8, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.encoder(self.inp(x))[:, -1])
        return out


def main() -> None:
    """All models and sizes."""
    options = record.arguments(QUESTION)
    torch.set_num_threads(2)
    rounds = 1 if options.small else options.rounds or 5
    answer: dict[str, Any] = {"torch": torch.__version__}
    for name, make_model, shape in (
        ("residual MLP (d=32, 32 rows)", lambda _: Mlp(), (32, 8)),
        ("transformer (d=32, 2 layers, 8 x 16)", lambda _: Transformer(), (8, 16, 8)),
    ):
        answer[name] = measure(make_model, shape, rounds, steps=3 if options.small else 10)
    print(answer) if options.small else record.save("bench_population", QUESTION, answer)


def loss(model: nn.Module, batch: Any) -> torch.Tensor:
    """Whether the first number of a sample is positive."""
    return nn.functional.binary_cross_entropy_with_logits(model(batch["x"]), batch["y"])


def run(step: Callable[[Any], Any], batches: list[Any]) -> None:
    """Steps over all batches."""
    for batch in batches:
        step(batch)


def measure(
    make_model: Callable[[Mapping[str, Any]], nn.Module], shape: tuple[int, ...], rounds: int, steps: int
) -> dict[str, Any]:
    """CPU time per step of a trial. The trial of the plain loop stands for all: they cost the same."""
    torch.manual_seed(0)
    batches = [{"x": torch.randn(shape)} for _ in range(steps)]
    batches = [{"x": one["x"], "y": (one["x"].flatten(1)[:, :1] > 0).float()} for one in batches]
    found: dict[str, Any] = {}
    for size in SIZES:
        configs = [{"lr": 10 ** (-4 + 2 * number / size), "weight_decay": 0.01} for number in range(size)]
        population = Population(make_model, loss, configs, verbose=False)
        first = trials_one_by_one.start(make_model, loss, configs[0], seed=0)
        difference = max(float((population.step(batch)[0] - first(batch)).abs()) for batch in batches)
        sides = {"plain loop": partial(run, first, batches), "population": partial(run, population.step, batches)}
        seconds = record.interleave(sides, rounds=rounds, clock=time.process_time)
        each = {"plain loop": seconds["plain loop"], "population": [one / size for one in seconds["population"]]}
        found[f"{size} trials"] = {
            "milliseconds of CPU time per step of a trial": {
                name: record.spread([1e3 * one / steps for one in values]) for name, values in each.items()
            },
            "faster than the plain loop": record.ratio(each["plain loop"], each["population"]),
            "losses differ by at most": difference,
        }
    return found


if __name__ == "__main__":
    main()

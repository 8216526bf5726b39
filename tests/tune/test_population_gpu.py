"""Populations on a GPU: steps as CUDA graphs give the losses of single runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from tests.tune.twins import Transformer, loss, make_batches, train_alone
from torch import nn

from stoker.tune import Population

pytestmark = pytest.mark.gpu

CONFIGS = [
    {"lr": 3e-3, "width": 16, "dropout": 0.0},
    {"lr": 1e-3, "width": 8, "dropout": 0.2},
    {"lr": 1e-2, "width": 24, "dropout": 0.1},
]


def make_model(config: Mapping[str, Any]) -> nn.Module:
    return Transformer(config["width"], dropout=config["dropout"])


def configs_for(optimizer: str) -> list[dict[str, float]]:
    """RMSprop with a learning rate of 0.01 amplifies rounding by 1e10 within 50 steps, also in a run alone."""
    return [{**config, "lr": config["lr"] / 10} for config in CONFIGS] if optimizer == "rmsprop" else CONFIGS


def on_gpu(batches: list[Any]) -> list[Any]:
    return [{name: one.cuda() for name, one in batch.items()} for batch in batches]


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "rmsprop"])
def test_graphs_give_the_losses_of_single_runs(optimizer: str) -> None:
    configs, batches = configs_for(optimizer), on_gpu(make_batches(50))
    population = Population(make_model, loss, configs, optimizer=optimizer, device="cuda", graph=True)
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    assert [group.how for group in population.report.groups] == ["padded"]
    assert population.report.graph == "yes"
    for row, config in enumerate(configs):
        alone, _ = train_alone(lambda config: make_model(config).cuda(), config, row, batches, optimizer=optimizer)
        assert (losses[row] - alone).abs().max() < 1e-4


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "rmsprop"])
def test_in_float64_losses_are_exact(optimizer: str) -> None:
    """In float32 training amplifies rounding; in float64 50 steps are too few for that, so a fault would show."""
    configs, batches = configs_for(optimizer), on_gpu(make_batches(50, torch.float64))
    population = Population(
        lambda config: make_model(config).double(), loss, configs, optimizer=optimizer, device="cuda", graph=True
    )
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    for row, config in enumerate(configs):
        alone, _ = train_alone(lambda config: make_model(config).double().cuda(), config, row, batches, optimizer=optimizer)
        assert (losses[row] - alone).abs().max() < 1e-9


def test_a_loss_with_a_second_derivative_is_batched_without_fused_kernels() -> None:
    def penalized(model: nn.Module, batch: Any, hyper: Mapping[str, Any]) -> torch.Tensor:
        gradient = torch.func.grad(lambda x: model(x).sum())(batch["x"])
        return loss(model, batch, hyper) + gradient.square().mean()

    class Normed(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(4, 16), nn.LayerNorm(16), nn.Flatten(), nn.Linear(96, 1))

    population = Population(lambda _: Normed(), penalized, [{"lr": 0.01}, {"lr": 0.02}], device="cuda")
    losses = torch.stack([population.step(batch) for batch in on_gpu(make_batches(5))])
    assert torch.isfinite(losses).all()
    assert population.report.groups[0].how == "batched"
    assert not population._groups[0].group.fuses


def test_kept_members_are_captured_again_and_continue() -> None:
    batches = on_gpu(make_batches(20))
    whole = Population(make_model, loss, CONFIGS, device="cuda", graph=True)
    expected = torch.stack([whole.step(batch) for batch in batches], 1)
    halved = Population(make_model, loss, CONFIGS, device="cuda", graph=True)
    for batch in batches[:10]:
        halved.step(batch)
    halved.keep([2, 0])
    found = torch.stack([halved.step(batch) for batch in batches[10:]], 1)
    assert torch.allclose(found, expected[[2, 0], 10:], atol=1e-4)


def test_muon_trains_in_a_graph() -> None:
    batches = on_gpu(make_batches(30))
    population = Population(
        make_model, loss, [{**config, "lr": 0.01} for config in CONFIGS], optimizer="muon", device="cuda", graph=True
    )
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    assert torch.isfinite(losses).all()
    assert losses[:, -5:].mean() < losses[:, :5].mean()


def test_a_model_that_reads_values_runs_without_a_graph() -> None:
    class Reads(Transformer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            return y * 2 if y.mean().item() > 0 else y

    population = Population(lambda _: Reads(), loss, [{"lr": 0.01}, {"lr": 0.02}], device="cuda")
    for batch in on_gpu(make_batches(3)):
        population.step(batch)
    assert population.report.graph.startswith("no: the step cannot be a graph")
    assert population.report.groups[0].how == "one by one"


def test_random_weights_of_a_model_made_on_the_gpu_follow_its_seed() -> None:
    def make() -> Population:
        return Population(lambda config: make_model(config).cuda(), loss, CONFIGS)

    batch = on_gpu(make_batches(1))[0]
    assert torch.equal(make().evaluate(batch), make().evaluate(batch))

"""Population: each member trains as it would alone, whatever the others do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest
import torch
from tests.tune.twins import ResidualMlp, Transformer, loss, make_batches, train_alone
from torch import nn
from torch.nn import functional
from torch.optim import _muon

from stoker.errors import OptionError
from stoker.train import orthogonalize
from stoker.tune import MemberRandom, Population, population_optimizers

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adamw": [{"lr": 3e-3}, {"lr": 1e-3, "weight_decay": 0.3, "betas": (0.8, 0.9)}, {"lr": 1e-2, "max_grad_norm": 0.1}],
    "sgd": [
        {"lr": 0.1},
        {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
        {"lr": 0.02, "momentum": 0.9, "nesterov": True, "max_grad_norm": 0.5},
    ],
    "rmsprop": [{"lr": 1e-3}, {"lr": 1e-3, "momentum": 0.5, "alpha": 0.9}, {"lr": 3e-3, "weight_decay": 0.01, "eps": 1e-6}],
    "muon": [{"lr": 0.01}, {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.0}, {"lr": 0.003, "nesterov": False, "adamw_lr": 0.001}],
}


@pytest.fixture
def exact_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    """The iteration of Muon in float64 on both sides: in bfloat16 it makes a difference of 1e-6 one of 1e-2 within 50 steps."""
    exact = partial(orthogonalize, dtype=torch.float64)
    monkeypatch.setattr(population_optimizers, "orthogonalize", exact)
    monkeypatch.setattr(_muon, "_zeropower_via_newtonschulz", lambda matrix, *_: exact(matrix[None])[0])


def train(population: Population, batches: list[Any]) -> torch.Tensor:
    """[K, steps]."""
    return torch.stack([population.step(batch) for batch in batches], 1)


@pytest.mark.usefixtures("exact_muon")
@pytest.mark.parametrize("steps", [16, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", SETTINGS)
def test_losses_of_members_are_those_of_each_alone(optimizer: str, steps: int) -> None:
    extra = [{"temperature": 1.0, "dropout": 0.0}, {"temperature": 0.5, "dropout": 0.1}, {"temperature": 2.0, "dropout": 0.3}]
    configs = [{**a, **b} for a, b in zip(SETTINGS[optimizer], extra, strict=True)]
    batches = make_batches(steps)

    def make_model(config: Mapping[str, Any]) -> nn.Module:
        return Transformer(layers=1, dropout=config["dropout"])

    population = Population(make_model, loss, configs, optimizer=optimizer, seeds=[3, 4, 5])
    losses = train(population, batches)
    assert [group.how for group in population.report.groups] == ["batched"]
    for row, config in enumerate(configs):
        alone, _ = train_alone(make_model, config, 3 + row, batches, optimizer=optimizer)
        assert (losses[row] - alone).abs().max() < 1e-4
    assert losses[0, -steps // 4 :].mean() < losses[0, : steps // 4].mean()


@pytest.mark.parametrize("optimizer", ["adamw", "sgd", "rmsprop"])
def test_weights_in_float64_are_those_of_torch(optimizer: str) -> None:
    batches = make_batches(20, torch.float64)

    def make_model(config: Mapping[str, Any]) -> nn.Module:
        return ResidualMlp(dropout=0.2).double()

    population = Population(make_model, loss, SETTINGS[optimizer], optimizer=optimizer)
    train(population, batches)
    for row, config in enumerate(SETTINGS[optimizer]):
        _, model = train_alone(make_model, config, row, batches, optimizer=optimizer)
        for name, found in population.member(row).state_dict().items():
            assert (found - model.state_dict()[name]).abs().max() < 1e-6, name


@pytest.mark.usefixtures("exact_muon")
@pytest.mark.parametrize("steps", [16, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_models_of_different_widths_and_depths_train_together(optimizer: str, steps: int) -> None:
    lr = {"adamw": 3e-3, "muon": 0.01}[optimizer]
    sizes = [(16, 2, 2), (8, 3, 2), (24, 1, 3), (16, 1, 4)]
    configs = [{"lr": lr, "width": width, "layers": layers, "heads": heads} for width, layers, heads in sizes]
    batches = make_batches(steps)

    def make_model(config: Mapping[str, Any]) -> nn.Module:
        return Transformer(config["width"], config["layers"], config["heads"], dropout=0.1)

    population = Population(make_model, loss, configs, optimizer=optimizer)
    losses = train(population, batches)
    assert [group.how for group in population.report.groups] == ["padded"]
    for row, config in enumerate(configs):
        alone, model = train_alone(make_model, config, row, batches, optimizer=optimizer)
        assert (losses[row] - alone).abs().max() < 1e-4
        assert [one.shape for one in population.member(row).parameters()] == [one.shape for one in model.parameters()]


@pytest.mark.parametrize("steps", [16, pytest.param(50, marks=pytest.mark.slow)])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm])
def test_residual_blocks_of_different_sizes_train_together(norm: type[nn.Module], steps: int) -> None:
    configs = [{"lr": 0.01, "width": width, "layers": layers} for width, layers in ((16, 1), (5, 3), (11, 2))]
    batches = make_batches(steps)

    def make_model(config: Mapping[str, Any]) -> nn.Module:
        return ResidualMlp(config["width"], config["layers"], 0.1, norm)

    population = Population(make_model, loss, configs)
    losses = train(population, batches)
    assert [group.how for group in population.report.groups] == ["padded"]
    for row, config in enumerate(configs):
        assert (losses[row] - train_alone(make_model, config, row, batches)[0]).abs().max() < 1e-4


def test_random_numbers_of_a_loss_are_those_of_the_member_alone() -> None:
    def noisy(model: nn.Module, batch: Any, hyper: Any, random: MemberRandom) -> torch.Tensor:
        x = batch["x"] + hyper["noise"] * random.normal(*batch["x"].shape)
        return functional.binary_cross_entropy_with_logits(model(x), batch["y"])

    configs = [{"lr": 0.01, "noise": noise} for noise in (0.0, 0.1, 1.0)]
    batches = make_batches(10)
    population = Population(lambda config: ResidualMlp(), noisy, configs)
    losses = train(population, batches)
    assert population.report.groups[0].notes == ()
    for row, config in enumerate(configs):
        alone, _ = train_alone(lambda _: ResidualMlp(), config, row, batches, function=noisy, takes_random=True)
        assert (losses[row] - alone).abs().max() < 1e-5


def test_members_of_equal_seed_and_settings_are_equal() -> None:
    population = Population(
        lambda config: Transformer(dropout=0.2), loss, [{"lr": 0.01, "seed": 7}] * 2 + [{"lr": 0.01, "seed": 8}]
    )
    losses = train(population, make_batches(5))
    assert torch.equal(losses[0], losses[1])
    assert not torch.equal(losses[0], losses[2])


def test_batch_norm_has_statistics_per_member() -> None:
    def make_model(config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Flatten(1), nn.Linear(24, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))

    configs = [{"lr": 0.01}, {"lr": 0.1}]
    batches = make_batches(20)
    population = Population(make_model, loss, configs)
    losses = train(population, batches)
    assert population.report.groups[0].how == "batched"
    for row, config in enumerate(configs):
        alone, model = train_alone(make_model, config, row, batches)
        assert (losses[row] - alone).abs().max() < 1e-4
        found = population.member(row)
        assert int(found[2].num_batches_tracked) == 20  # type: ignore[index]
        assert torch.allclose(found[2].running_var, model[2].running_var, atol=1e-4)  # type: ignore[index]
        own = loss(model.eval(), batches[0], {})
        assert abs(population.evaluate(batches[0])[row] - own) < 1e-4


def test_a_member_that_diverges_does_not_disturb_others() -> None:
    configs = [{"lr": 0.01}, {"lr": 1e30}, {"lr": 0.02}]
    batches = make_batches(20)
    population = Population(lambda config: ResidualMlp(), loss, configs, optimizer="sgd")
    losses = train(population, batches)
    assert not torch.isfinite(losses[1, -1])
    for row in (0, 2):
        alone, _ = train_alone(lambda _: ResidualMlp(), configs[row], row, batches, optimizer="sgd")
        assert (losses[row] - alone).abs().max() < 1e-5


@pytest.mark.parametrize("optimizer", SETTINGS)
def test_kept_members_continue_as_if_nothing_had_happened(optimizer: str) -> None:
    configs = [{**config, "width": width} for config, width in zip(SETTINGS[optimizer], (16, 8, 12), strict=True)]
    batches = make_batches(12)

    def make() -> Population:
        return Population(lambda config: ResidualMlp(config["width"], dropout=0.1), loss, configs, optimizer=optimizer)

    whole, halved = make(), make()
    expected = train(whole, batches)
    train(halved, batches[:6])
    halved.keep([2, 0])
    found = train(halved, batches[6:])
    assert torch.allclose(found, expected[[2, 0], 6:], atol=1e-5)
    assert [config["width"] for config in halved.configs] == [12, 16]
    halved.keep([1])
    assert halved.report.groups[0].how == "one by one"
    assert halved.evaluate(batches).shape == (1,)


def test_a_state_continues_exactly() -> None:
    configs = [{"lr": 0.01, "width": 16}, {"lr": 0.02, "width": 8}]
    batches = make_batches(8)

    def make() -> Population:
        return Population(
            lambda config: Transformer(config["width"], dropout=0.1), loss, configs, schedule=lambda step: 1 / (1 + step)
        )

    first = make()
    train(first, batches[:4])
    state = first.state_dict()
    expected = train(first, batches[4:])
    second = make()
    second.load_state_dict(state)
    assert torch.equal(train(second, batches[4:]), expected)
    assert second.num_updates == 8
    other = Population(lambda config: Transformer(), loss, configs[:1])
    with pytest.raises(OptionError, match="2 members with other configs or seeds than the 1 here"):
        other.load_state_dict(state)


def test_evaluation_changes_nothing_and_averages_over_rows() -> None:
    population = Population(lambda config: Transformer(dropout=0.5), loss, [{"lr": 0.01}, {"lr": 0.1}])
    batches = make_batches(3)
    first = population.evaluate(batches)
    before = population.state_dict()["groups"][0]["tensors"]
    short = {"x": batches[0]["x"][:2], "y": batches[0]["y"][:2]}
    mixed = population.evaluate(iter([batches[0], short]))
    parts = population.evaluate(batches[0]), population.evaluate(short)
    assert torch.allclose(mixed, (8 * parts[0] + 2 * parts[1]) / 10)
    assert torch.equal(population.evaluate(batches), first)
    after = population.state_dict()["groups"][0]["tensors"]
    assert all(torch.equal(before[name], after[name]) for name in before)
    correct = population.evaluate(batches, metric=lambda model, batch, _: ((model(batch["x"]) > 0) == batch["y"]).float().mean())
    assert ((correct >= 0) & (correct <= 1)).all()


def test_a_model_from_a_member_continues_alone_as_the_member_does() -> None:
    batches = make_batches(6)
    population = Population(lambda config: Transformer(dropout=0.3), loss, [{"lr": 0.0}, {"lr": 0.0}])
    train(population, batches[:3])
    member = population.member(1).train()
    assert torch.allclose(loss(member, batches[3], {}), population.step(batches[3])[1], atol=1e-6)


def test_chunks_of_members_give_the_same_losses() -> None:
    configs = [{"lr": 0.01 * (row + 1)} for row in range(5)]
    batches = make_batches(5)
    whole = train(Population(lambda _: Transformer(dropout=0.1), loss, configs), batches)
    chunked = train(Population(lambda _: Transformer(dropout=0.1), loss, configs, chunk_size=2), batches)
    assert torch.allclose(whole, chunked, atol=1e-6)


def test_a_schedule_multiplies_all_learning_rates() -> None:
    batches = make_batches(4)
    frozen = Population(lambda _: ResidualMlp(), loss, [{"lr": 0.1}], schedule=lambda step: 0.0 if step else 1.0)
    train(frozen, batches[:1])
    weights = [one.clone() for one in frozen.member(0).parameters()]
    train(frozen, batches[1:])
    assert all(torch.equal(a, b) for a, b in zip(weights, frozen.member(0).parameters(), strict=True))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"configs": []}, "configs is empty"),
        ({"configs": [{"lr": 0.1}, {}]}, r"configs\[1\] has no 'lr'"),
        ({"optimizer": "adam"}, "optimizer is 'adam'; expected one of adamw, sgd, rmsprop, muon"),
        ({"configs": [{"lr": 0.1, "momentum": 0.9}]}, r"configs\[0\] has 'momentum', which adamw does not use"),
        ({"configs": [{"lr": -1.0}]}, r"lr of configs\[0\] is -1.0"),
        ({"configs": [{"lr": math.nan}]}, r"lr of configs\[0\] is nan"),
        ({"configs": [{"lr": 0.1, "betas": 0.9}]}, r"betas of configs\[0\] is 0.9; expected two numbers"),
        ({"configs": [{"lr": 0.1, "betas": (0.9, 1.0)}]}, r"beta2 of configs\[0\] is 1.0; expected at least 0 and below 1"),
        ({"seeds": [1]}, "seeds has 1 entries and configs 2"),
        ({"graph": "yes"}, "graph is 'yes'"),
        ({"graph": True}, "graph is True, but the population is on cpu"),
        ({"loss": lambda model: 0}, "loss takes"),
        ({"loss": 3}, "loss is 3"),
        ({"make_model": lambda config: 3}, "make_model returned 3"),
    ],
)
def test_invalid_arguments_are_refused_at_once(given: dict[str, Any], message: str) -> None:
    arguments = {"make_model": lambda config: ResidualMlp(), "loss": loss, "configs": [{"lr": 0.1}, {"lr": 0.2}], **given}
    with pytest.raises(OptionError, match=message):
        Population(arguments.pop("make_model"), arguments.pop("loss"), arguments.pop("configs"), **arguments)


def test_invalid_indices_are_refused() -> None:
    population = Population(lambda _: ResidualMlp(), loss, [{"lr": 0.1}, {"lr": 0.2}])
    for indices in ([], [0, 0], [2], [-1]):
        with pytest.raises(OptionError, match="expected different positions from 0 to 1"):
            population.keep(indices)
    with pytest.raises(OptionError, match="index is 2"):
        population.member(2)
    with pytest.raises(OptionError, match="batches is empty"):
        population.evaluate([])

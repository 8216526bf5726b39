"""Planning: what cannot be batched is found on the first batch, split up, and reported with its reason."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from tests.tune.twins import ResidualMlp, loss, make_batches, train_alone
from torch import nn
from torch.nn import functional

from stoker.errors import OptionError
from stoker.tune import Population

LR = [{"lr": 0.01}, {"lr": 0.02}]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 8, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.rnn(x)[0][:, -1])
        return out


class Reads(ResidualMlp):
    """Reads a value in Python."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y * 2 if y.mean().item() > 0 else y


class Masks(ResidualMlp):
    """Has a shape that depends on values."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y + y[y > 0].sum()


class Writes(ResidualMlp):
    """Writes members into one tensor."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), 1).add_(super().forward(x))


class Counts(ResidualMlp):
    """Replaces a buffer, which a batch cannot see."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return super().forward(x) * self.count


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Reads, "the model or loss needs a value in Python"),
        (Masks, "the model or loss has a shape that depends on values"),
        (Writes, "output with shape"),
        (Counts, "batched, the buffer 'count' of member 0 differs from that alone"),
    ],
)
def test_what_cannot_be_batched_runs_one_by_one(
    model: Callable[[], nn.Module], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    batches = make_batches(3)
    population = Population(lambda _: model(), loss, LR)
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    [group] = population.report.groups
    assert group.how == "one by one"
    assert group.reason is not None
    assert group.reason.startswith(reason)
    assert capsys.readouterr().out.count("population: 2 members one by one") == 1
    for row, config in enumerate(LR):
        assert torch.allclose(losses[row], train_alone(lambda _: model(), config, row, batches)[0], atol=1e-5)


def test_an_operation_that_torch_loops_over_is_reported() -> None:
    batches = make_batches(3)
    population = Population(lambda _: Recurrent(), loss, LR)
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    for row, config in enumerate(LR):
        assert torch.allclose(losses[row], train_alone(lambda _: Recurrent(), config, row, batches)[0], atol=1e-5)
    [group] = population.report.groups
    assert group.how == "one by one" or "rnn" in str(group.notes)
    assert population.evaluate(batches).shape == (2,)


def test_shapes_are_grouped_without_masking() -> None:
    configs = [{"lr": 0.01, "width": width} for width in (8, 4, 8, 4, 8)]
    population = Population(lambda config: ResidualMlp(config["width"]), loss, configs, masking=False, verbose=False)
    batches = make_batches(3)
    losses = torch.stack([population.step(batch) for batch in batches], 1)
    assert [(group.members, group.how) for group in population.report.groups] == [((0, 2, 4), "batched"), ((1, 3), "batched")]
    assert population.report.groups[0].reason == "the shapes differ, and masking=False"
    for row, config in enumerate(configs):
        alone, _ = train_alone(lambda config: ResidualMlp(config["width"]), config, row, batches)
        assert torch.allclose(losses[row], alone, atol=1e-5)
    population.keep([3, 4])
    assert [group.members for group in population.report.groups] == [(1,), (0,)]
    assert torch.allclose(population.evaluate(batches[0])[0], loss(population.member(0).eval(), batches[0], {}), atol=1e-6)


class MeanOverWidth(ResidualMlp):
    """Divides by its width in Python, which padding cannot know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.inp(x)
        return self.head(y).mean(-2) / y.shape[-1]


def test_padding_that_would_change_a_model_is_noticed() -> None:
    configs = [{"lr": 0.01, "width": width} for width in (8, 4, 8)]
    population = Population(lambda config: MeanOverWidth(config["width"], 1), loss, configs, verbose=False)
    report = population.prepare(make_batches(1)[0])
    assert [group.members for group in report.groups] == [(0, 2), (1,)]
    assert report.groups[0].reason is not None
    assert "batched, the loss of member" in report.groups[0].reason


def test_negative_control_without_the_comparison_padding_would_change_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    from stoker.tune import population_plan

    monkeypatch.setattr(population_plan, "_find_difference", lambda *given: None)
    configs = [{"lr": 0.01, "width": width} for width in (8, 4)]
    population = Population(lambda config: MeanOverWidth(config["width"], 1), loss, configs)
    [batch] = make_batches(1)
    found = population.step(batch)
    alone, _ = train_alone(lambda config: MeanOverWidth(config["width"], 1), configs[1], 1, [batch])
    assert population.report.groups[0].how == "padded"
    assert abs(found[1] - alone[0]) > 1e-4


def test_numbers_that_torch_needs_in_python_are_grouped() -> None:
    def make_model(config: Mapping[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Flatten(1), nn.Linear(24, 4), nn.GroupNorm(2, 4, eps=config["eps"]), nn.Linear(4, 1))

    configs = [{"lr": 0.01, "norm_eps": eps} for eps in (1e-5, 0.1, 1e-5, 0.1)]
    population = Population(lambda config: make_model({"eps": config["norm_eps"]}), loss, configs, verbose=False)
    report = population.prepare(make_batches(1)[0])
    assert [group.members for group in report.groups] == [(0, 2), (1, 3)]


def test_random_numbers_of_torch_are_reported() -> None:
    def noisy(model: nn.Module, batch: Any) -> torch.Tensor:
        return functional.binary_cross_entropy_with_logits(model(batch["x"] + torch.randn_like(batch["x"])), batch["y"])

    population = Population(lambda _: ResidualMlp(), noisy, [{"lr": 0.01, "seed": 1}] * 2)
    losses = population.step(make_batches(1)[0])
    assert losses[0] != losses[1]
    assert "the loss draws from torch's generator" in str(population.report)


def test_strings_for_the_loss_are_grouped() -> None:
    def either(model: nn.Module, batch: Any, hyper: Any) -> torch.Tensor:
        difference = model(batch["x"]) - batch["y"]
        return difference.abs().mean() if hyper["kind"] == "l1" else difference.square().mean()

    configs = [{"lr": 0.01, "kind": kind} for kind in ("l1", "l2", "l1")]
    population = Population(lambda _: ResidualMlp(), either, configs, verbose=False)
    assert [group.members for group in population.prepare(make_batches(1)[0]).groups] == [(0, 2), (1,)]


def test_a_misspelt_setting_is_refused_and_an_unread_entry_noted() -> None:
    batch = make_batches(1)[0]
    with pytest.raises(OptionError, match=r"configs has 'weight_decy', which neither .* reads; is it 'weight_decay'"):
        Population(lambda _: ResidualMlp(), loss, [{"lr": 0.1, "weight_decy": 0.1}]).step(batch)
    noted = Population(lambda _: ResidualMlp(), loss, [{"lr": 0.1, "comment": "first"}])
    noted.step(batch)
    assert "read by neither make_model nor loss: comment" in str(noted.report)


@pytest.mark.parametrize("value", [lambda model, batch: model(batch["x"]), lambda model, batch: 3.0])
def test_a_loss_that_is_not_a_scalar_is_refused(value: Callable[..., Any]) -> None:
    population = Population(lambda _: ResidualMlp(), value, LR)
    with pytest.raises(OptionError, match=r"loss returned .*; expected a scalar tensor"):
        population.step(make_batches(1)[0])


def test_an_error_of_the_model_is_that_of_the_model() -> None:
    population = Population(lambda _: nn.Sequential(nn.Flatten(1), nn.Linear(5, 1)), loss, LR)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        population.step(make_batches(1)[0])


def test_models_without_anything_to_train_are_refused() -> None:
    frozen = Population(lambda _: ResidualMlp().requires_grad_(False), loss, LR)
    with pytest.raises(OptionError, match="make_model returned a model without trainable parameters"):
        frozen.step(make_batches(1)[0])


def test_frozen_parameters_stay() -> None:
    def make_model(config: Mapping[str, Any]) -> nn.Module:
        model = ResidualMlp()
        model.inp.requires_grad_(False)
        return model

    population = Population(make_model, loss, LR)
    before = population.member(0).inp.weight.clone()  # type: ignore[union-attr, operator]
    batches = make_batches(3)
    for batch in batches:
        population.step(batch)
    after = population.member(0)
    assert torch.equal(after.inp.weight, before)  # type: ignore[union-attr, arg-type]
    assert not torch.equal(after.head.weight, make_model({}).head.weight)  # type: ignore[union-attr, arg-type]

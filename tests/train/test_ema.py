"""The moving average: equal to its formula, without a wait, and never in the way of the weights themselves."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.train.syncs import Syncs
from torch import Tensor, nn

from stoker.train import Ema


class Model(nn.Module):
    """Tied and frozen weights, half precision, and buffers of floats and integers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.out = nn.Linear(4, 7)
        self.out.weight = self.embed.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.narrow = nn.Parameter(torch.randn(5, dtype=torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.out(self.norm(self.frozen(self.embed(x))))
        return hidden


def change(model: nn.Module) -> None:
    """Weights that are trained, and buffers, move."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += torch.randn_like(weight)
        for buffer in model.buffers():
            buffer += 1


def bits(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_average_equals_its_formula_tensor_by_tensor() -> None:
    model = Model()
    ema = Ema(model, 0.9)
    slow = {name: weight.detach().double() for name, weight in model.named_parameters()}
    lerp = {name: weight.detach().clone() for name, weight in model.named_parameters() if weight.dtype == torch.float32}
    for _ in range(20):
        change(model)
        ema.update()
        for name, weight in model.named_parameters():
            slow[name] = 0.9 * slow[name] + (1 - 0.9) * weight.detach().double()
            if name in lerp:
                lerp[name].lerp_(weight.detach(), 1 - 0.9)
    average = ema.state_dict()["average"]
    assert "narrow" in average
    assert not {"frozen.weight", "out.weight"} & average.keys()  # left alone; the same tensor as embed.weight
    for name, value in average.items():
        torch.testing.assert_close(value.double(), slow[name], rtol=1e-4, atol=1e-5)
        assert name not in lerp or torch.equal(value, lerp[name])


def test_a_flag_on_the_device_holds_the_average_still() -> None:
    model, other = Model(), None
    ema = Ema(model, 0.9)
    change(model)
    before = [one.clone() for one in ema.tensors()]
    ema.update(torch.ones(()))
    assert all(torch.equal(one, two) for one, two in zip(ema.tensors(), before, strict=True))
    other = Ema(copy.deepcopy(model), 0.9)
    other.load_state_dict(ema.state_dict())
    ema.update(torch.zeros(()))
    other.update()
    for gated, plain in zip(ema.tensors(), other.tensors(), strict=True):
        torch.testing.assert_close(gated, plain, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("flag", [None, torch.zeros(())])
def test_update_waits_for_nothing_and_changes_no_address(flag: Tensor | None) -> None:
    ema = Ema(Model(), 0.99)
    places = [one.data_ptr() for one in ema.tensors()]
    with Syncs() as syncs:
        ema.update(flag)
    assert syncs.seen == []
    assert [one.data_ptr() for one in ema.tensors()] == places


def test_applied_is_the_average_and_then_the_weights_again_bit_for_bit() -> None:
    model = Model()
    ema = Ema(model, 0.5)
    change(model)
    ema.update()
    before, places = bits(model), [weight.data_ptr() for weight in model.parameters()]
    with ema.applied():
        for name, value in ema.state_dict()["average"].items():
            assert torch.equal(model.state_dict()[name], value.to(model.state_dict()[name].dtype))
        assert torch.equal(model.out.weight, model.embed.weight)
        assert torch.equal(model.norm.num_batches_tracked, before["norm.num_batches_tracked"])
        model.train()(torch.arange(7))  # moves the buffers
    assert_same(bits(model), before)
    assert [weight.data_ptr() for weight in model.parameters()] == places


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_the_weights_come_back_after_an_exception(error: type[BaseException]) -> None:
    model = Model()
    ema = Ema(model, 0.5)
    change(model)
    ema.update()
    before = bits(model)

    def fails() -> None:
        change(model)
        raise error

    with pytest.raises(error), ema.applied():
        fails()
    assert_same(bits(model), before)
    with ema.applied():
        pass


def test_a_model_that_resumes_averages_as_if_it_had_not_stopped() -> None:
    model = Model()
    ema = Ema(model, 0.9)
    change(model)
    ema.update()
    other_model = copy.deepcopy(model)
    other = Ema(other_model, 0.9)
    other.load_state_dict({"decay": 0.9, "average": {name: one.clone() for name, one in ema.state_dict()["average"].items()}})
    torch.manual_seed(1)
    change(model)
    torch.manual_seed(1)
    change(other_model)
    ema.update()
    other.update()
    assert all(torch.equal(one, two) for one, two in zip(ema.tensors(), other.tensors(), strict=True))


def test_half_precision_would_stand_still_but_its_average_moves() -> None:
    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    ema, still = Ema(model, 0.999), torch.ones(1, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(2.0)
    for _ in range(1000):
        ema.update()
        still.lerp_(model.weight.detach(), 0.001)
    assert float(still) == 1.0
    assert float(ema.tensors()[0]) == pytest.approx(2 - 0.999**1000, rel=1e-3)

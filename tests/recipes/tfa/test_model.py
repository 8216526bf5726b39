"""The TFA model against the formulation of its authors: the same weights, the same numbers, less work."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from benchmarks.before import tfa_loop
from torch import nn

import stoker
from stoker_recipes.tfa.model import Tfa, build_model

FEATURES = 55


def moments(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {"mean": torch.randn(FEATURES, generator=generator), "std": 0.5 + torch.rand(FEATURES, generator=generator)}


def rows(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, FEATURES, generator=torch.Generator().manual_seed(seed))


def shaken(model: nn.Module) -> nn.Module:
    """With weights that nothing is zero of: norms and biases of a fresh model would hide mistakes."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.1 * torch.randn(weight.shape, generator=generator)
    return model


def pair(dtype: torch.dtype, **sizes: Any) -> tuple[nn.Module, Tfa]:
    """The authors' model and ours with the same weights."""
    torch.manual_seed(0)
    theirs = shaken(tfa_loop.Tfa(**moments(), **sizes)).to(dtype)
    ours = Tfa(**moments(), **sizes).to(dtype)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def gradients(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    nn.functional.binary_cross_entropy_with_logits(model(x).reshape(-1), y).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def windows_of(x: torch.Tensor, length: int) -> torch.Tensor:
    return torch.stack([x[first : first + length] for first in range(len(x) - length + 1)])


def test_the_sizes_are_those_of_the_authors() -> None:
    model = build_model("tfa", num_features=FEATURES, length=48, **moments())
    small = build_model("tfa-small", num_features=FEATURES, length=32, **moments())
    assert sum(weight.numel() for weight in model.parameters()) == 404_737
    assert sum(weight.numel() for weight in small.parameters()) == 155_041
    assert (model.reach, small.reach) == (48, 32)


def test_weights_load_both_ways() -> None:
    torch.manual_seed(0)
    theirs = tfa_loop.Tfa(**moments())
    torch.manual_seed(0)
    ours = Tfa(**moments())
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], tensor), name  # the same seed makes the same model
    theirs.load_state_dict(shaken(ours).state_dict())


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_outputs_and_gradients_are_those_of_the_plain_formulation(layers: int) -> None:
    theirs, ours = pair(torch.float64, layers=layers)
    x, y = rows(6, 48).double(), torch.tensor([0.0, 1, 1, 0, 1, 0]).double()
    torch.testing.assert_close(ours(x), theirs(x), rtol=0, atol=1e-12)
    expected = gradients(theirs, x, y)
    for name, found in gradients(ours, x, y).items():
        torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-12, msg=name)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_a_run_of_rows_is_its_windows(layers: int) -> None:
    theirs, ours = pair(torch.float64, layers=layers)
    run = rows(60, seed=3).double()
    y = (rows(13, seed=4)[:, 0] > 0).double()
    each = windows_of(run, 48)
    torch.testing.assert_close(ours(run[None])[0], theirs(each)[:, 0], rtol=0, atol=1e-12)
    expected = gradients(theirs, each, y)
    for name, found in gradients(ours, run[None], y).items():
        torch.testing.assert_close(found, expected[name], rtol=0, atol=1e-12, msg=name)


def test_without_positions_the_earlier_rows_are_a_bag_and_with_them_not() -> None:
    x = rows(2, 48).double()
    mixed = torch.cat([x[:, torch.randperm(47, generator=torch.Generator().manual_seed(0))], x[:, 47:]], dim=1)
    torch.manual_seed(0)
    for positions, is_bag in ((False, True), (True, False)):
        model = Tfa(**moments(), positions=positions).double()
        assert (model(x) - model(mixed)).abs().max().item() < 1e-12 or not is_bag
        assert (model(x) - model(mixed)).abs().max().item() > 1e-6 or is_bag


def test_the_last_row_sees_nothing_behind_it() -> None:
    _, ours = pair(torch.float32, layers=2)

    def logits(bars: Any) -> torch.Tensor:
        with torch.no_grad():  # one window at a time, so that the same bits come out of the same rows
            return torch.cat([ours(torch.from_numpy(bars[i - 47 : i + 1]).float()[None])[0] for i in range(47, len(bars))])

    stoker.testing.assert_no_future(logits, rows(60).numpy(), first=47, at=[50, 55])

"""Merging models: what is padded, what varies, and what cannot be merged, with the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.tune.twins import ResidualMlp, Transformer
from torch import nn
from torch.func import functional_call

from stoker.tune import population_merge
from stoker.tune.population_merge import Merged, merge, real_entries, signature, stack
from stoker.tune.randomness import seed_model


@pytest.fixture(autouse=True)
def without_fast_path() -> Iterator[None]:
    """Torch's fused layer does not look at the attention inside."""
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def outputs(merged: Merged, models: list[nn.Module], x: torch.Tensor) -> list[torch.Tensor]:
    """What the merged module computes for each model."""
    found = []
    for row, model in enumerate(models):
        own = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        tensors = {
            name: stack([own.get(name), None], [merged.views[row].get(name), None], shape)[0] if name in own else torch.zeros(shape)
            for name, shape in merged.shapes.items()
        }
        for (path, key), values in merged.varying.items():
            merged.base.get_submodule(path).__dict__[key] = values[row]
        found.append(functional_call(merged.base.eval(), tensors, (x,)))
    return found


MODELS: dict[str, Callable[[int, int], nn.Module]] = {
    "residual LayerNorm": lambda width, layers: ResidualMlp(width, layers),
    "residual RMSNorm": lambda width, layers: ResidualMlp(width, layers, norm=nn.RMSNorm),
    "transformer": lambda width, layers: Transformer(2 * width, layers),
    "plain MLP": lambda width, layers: nn.Sequential(nn.Linear(4, width), nn.Sigmoid(), nn.Linear(width, 1)),
}


def assert_merged(models: list[nn.Module], *, pass_on: bool = False) -> None:
    merged = merge(models, pass_on=pass_on)
    assert isinstance(merged, Merged)
    assert merged.is_padded
    x = torch.randn(2, 6, 4)
    for found, model in zip(outputs(merged, models, x), models, strict=True):
        assert torch.allclose(found, model.eval()(x), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_merged_module_computes_what_each_model_computes(name: str) -> None:
    assert_merged([seed_model(MODELS[name](width, layers), 0) for width, layers in ((8, 2), (3, 3), (5, 1))])


def test_a_layer_that_ends_in_a_norm_passes_its_input_on() -> None:
    models: list[nn.Module] = [seed_model(Transformer(8, layers, norm_first=False), 0) for layers in (1, 3)]
    assert_merged(models, pass_on=True)
    with pytest.raises(AssertionError):
        assert_merged(models, pass_on=False)  # the negative control: with zero weights, the norm would scale its input


def test_heads_of_different_number_and_width_are_padded() -> None:
    assert_merged([seed_model(Transformer(width, 1, heads), 0) for width, heads in ((12, 2), (12, 4), (8, 1))])


def test_negative_control_a_norm_over_the_padded_width_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(population_merge._NORMS, nn.LayerNorm, nn.LayerNorm)
    models: list[nn.Module] = [nn.Sequential(nn.Linear(4, width), nn.LayerNorm(width), nn.Linear(width, 1)) for width in (6, 3)]
    merged = merge(models)
    assert isinstance(merged, Merged)
    merged.base[1].normalized_shape = (6,)  # type: ignore[index]
    x = torch.randn(5, 4)
    assert not torch.allclose(outputs(merged, models, x)[1], models[1](x), atol=1e-2)


def test_numbers_that_differ_vary_and_equal_ones_stay() -> None:
    merged = merge([nn.Sequential(nn.Linear(2, 2), nn.Dropout(p), nn.LeakyReLU(0.1)) for p in (0.1, 0.5)])
    assert isinstance(merged, Merged)
    assert not merged.is_padded
    assert merged.varying == {("1", "p"): [0.1, 0.5]}


class Optional(nn.Module):
    def __init__(self, extra: bool) -> None:
        super().__init__()
        self.body = nn.Linear(2, 2)
        if extra:
            self.extra = nn.Linear(2, 2)


class Flag(nn.Module):
    def __init__(self, mode: str) -> None:
        super().__init__()
        self.body, self.mode = nn.Linear(2, 2), mode


class Shaped(nn.Module):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))


@pytest.mark.parametrize(
    ("models", "reason"),
    [
        ([nn.Sequential(nn.ReLU()), nn.Sequential(nn.GELU())], "module '0' is a GELU in model 1 and not in others"),
        ([Optional(True), Optional(False)], "model 1 lacks module 'extra', which is not a layer of a ModuleList or Sequential"),
        ([Flag("a"), Flag("b")], "attribute 'mode' of module '' is 'a' in one model and 'b' in another"),
        ([Shaped(2, 3), Shaped(4)], "parameter 'weight' has 2 dimensions in one model and 1 in another"),
        ([Optional(False), Flag("a")], "module '' is a Flag in model 1 and not in others"),
    ],
)
def test_models_that_cannot_be_merged_give_the_reason(models: list[nn.Module], reason: str) -> None:
    assert merge(models) == reason


def test_a_signature_says_whether_models_can_be_stacked() -> None:
    def of(*given: Any, with_numbers: bool = False) -> Any:
        return signature(nn.Sequential(nn.Linear(*given[:2]), nn.Dropout(given[2])), with_numbers=with_numbers)

    assert of(2, 3, 0.1) == of(2, 3, 0.2)
    assert of(2, 3, 0.1, with_numbers=True) != of(2, 3, 0.2, with_numbers=True)
    assert of(2, 3, 0.1) != of(3, 3, 0.1)


def test_real_entries_are_those_of_the_corner() -> None:
    assert real_entries([(1, 2), None], (2, 3)).tolist() == [[[1, 1, 0], [0, 0, 0]], [[0, 0, 0], [0, 0, 0]]]

"""The models against the formulation of their authors, or a slow twin; and prices as ratios to the close."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from benchmarks.before import tfa_loop
from benchmarks.tfa.bench_indicators import spec_of_55
from benchmarks.tfa.markets import market
from torch import nn

import stoker_recipes.tfa
from stoker.errors import OptionError
from stoker_recipes.tfa.model import Banded, Levels, Tfa, build_model, levels_of, ratios

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


# The banded model: its slow twin with a full mask, causality, how far it sees, and the last row alone


BANDED_FEATURES = 5


def banded(**sizes: Any) -> Banded:
    """With weights that nothing is zero of."""
    torch.manual_seed(0)
    mean, std = torch.randn(BANDED_FEATURES), 0.5 + torch.rand(BANDED_FEATURES)
    model = Banded(mean=mean, std=std, **({"window": 7, "width": 12, "heads": 3, "layers": 2, "hidden": 16} | sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


def banded_rows(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, BANDED_FEATURES, generator=torch.Generator().manual_seed(seed))


def twin(model: Banded, x: torch.Tensor) -> torch.Tensor:
    """The same mathematics row by row: each row looks at every row before it that its window holds."""
    h = model.inp((x - model.mean) * model.inv_std)
    h = h + model.bend(nn.functional.gelu(h))
    for block in model.blocks:
        h = twin_block(block, h, model.window)
    return model.head(model.norm(h))[..., 0]


def twin_block(block: nn.Module, h: torch.Tensor, window: int) -> torch.Tensor:
    heads = len(block.bias)
    query, key, value = (part.unflatten(-1, (heads, -1)) for part in block.qkv(block.norm1(h)).chunk(3, dim=-1))  # [n, h, k]
    mixed = torch.zeros_like(query)
    for i in range(len(h)):
        seen = range(max(0, i - window + 1), i + 1)
        for head in range(heads):
            scores = torch.stack(
                [query[i, head] @ key[j, head] / math.sqrt(query.shape[-1]) + block.bias[head, i - j] for j in seen]
            )
            shares = torch.softmax(scores, 0)
            mixed[i, head] = sum((shares[n] + block.share[head, i - j]) * value[j, head] for n, j in enumerate(seen))
    h = h + block.out(mixed.flatten(1))
    return h + block.linear2(nn.functional.gelu(block.linear1(block.norm2(h))))


@pytest.mark.parametrize("num_rows", [1, 6, 7, 8, 30])
def test_chunks_give_what_a_row_by_row_twin_gives(num_rows: int) -> None:
    model = banded().double()
    x = banded_rows(2, num_rows).double()
    expected = torch.stack([twin(model, one) for one in x])
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)


def test_gradients_are_those_of_the_twin() -> None:
    model = banded().double()
    x = banded_rows(18).double()
    found = torch.autograd.grad(model(x[None]).square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(twin(model, x).square().sum(), list(model.parameters()))
    for (name, _), one, other in zip(model.named_parameters(), found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11, msg=name)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_reach_is_exact(layers: int) -> None:
    model = banded(layers=layers)
    assert model.reach == layers * 6 + 1
    x = banded_rows(1, 40)
    before = model(x)[0, -1]
    for back, is_seen in ((model.reach - 1, True), (model.reach, False)):
        changed = x.clone()
        changed[0, -1 - back] += 100.0
        assert bool(model(changed)[0, -1] != before) == is_seen
    beyond = x.clone()
    beyond[0, : -model.reach] = banded_rows(40 - model.reach, seed=9) * 50
    assert torch.equal(model(beyond)[0, -1], before)


@pytest.mark.parametrize("num_rows", [1, 5, 13, 40])
def test_the_last_row_alone_is_that_of_the_batch(num_rows: int) -> None:
    model = banded()
    x = banded_rows(3, num_rows)
    with torch.no_grad():
        torch.testing.assert_close(model.last(x), model(x)[:, -1], rtol=0, atol=1e-6)
        torch.testing.assert_close(model.last(x[:, -model.reach :]), model.last(x), rtol=0, atol=0)


# Prices as ratios to the close: which columns they are, and that a model does to a row what the data's moments were taken of


def test_of_the_usual_spec_the_prices_are_found() -> None:
    levels = levels_of(spec_of_55()["features"])
    assert levels.close == 0
    assert len(levels.levels) == 33  # the close and 32 averages
    assert levels.distances == ()


def test_distances_and_other_sources_are_distinguished() -> None:
    features = [
        {"op": "ATR", "window": 14},
        {"op": "ema", "source": "logret", "window": 5},
        {"op": "IDENT", "source": "close"},
        {"op": "IDENT", "source": "high"},
        {"op": "SMA", "source": "volume"},
        {"op": "MACD_LINE"},
        {"op": "VOLATILITY", "source": "logret"},
        {"op": "RSI"},
    ]
    assert levels_of(features) == Levels(close=2, levels=(2, 3), distances=(0, 5))


def test_a_spec_without_the_close_is_refused() -> None:
    with pytest.raises(OptionError, match="none of 1 features is IDENT of the close"):
        levels_of([{"op": "EMA", "window": 3}])


def test_a_market_at_twice_the_price_has_the_same_logits() -> None:
    bars = market(400, "lag", 0)
    spec = {"features": [one for one in spec_of_55()["features"] if one.get("window", 1) <= 20]}
    levels = levels_of(spec["features"])
    names = ("open", "high", "low", "close")

    def logits(factor: float, levels: Levels | None) -> torch.Tensor:
        columns = {name: factor * bars[name] for name in names} | {"volume": bars["volume"]}
        x = stoker_recipes.tfa.features(columns, spec, threads=1).values[40:]
        torch.manual_seed(0)
        seen = first if levels is None else ratios(first, levels)
        moments = {"mean": seen.mean(0), "std": seen.std(0).clip(1e-6)}
        model = build_model("banded", num_features=x.shape[1], length=8, width=16, levels=levels, **moments)
        with torch.no_grad():
            return model(torch.from_numpy(x)[None])

    first = stoker_recipes.tfa.features({name: bars[name] for name in (*names, "volume")}, spec, threads=1).values[40:]
    torch.testing.assert_close(logits(2.0, levels), logits(1.0, levels), rtol=0, atol=1e-3)
    assert (logits(2.0, None) - logits(1.0, None)).abs().max().item() > 0.1  # what raw prices do

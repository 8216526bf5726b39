"""The banded model: its slow twin with a full mask, causality, how far it sees, and the last row alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from stoker_recipes.tfa.model import Banded, BandedBlock

FEATURES = 5


def banded(**sizes: Any) -> Banded:
    """With weights that nothing is zero of."""
    torch.manual_seed(0)
    mean, std = torch.randn(FEATURES), 0.5 + torch.rand(FEATURES)
    model = Banded(mean=mean, std=std, **({"window": 7, "width": 12, "heads": 3, "layers": 2, "hidden": 16} | sizes))
    with torch.no_grad():
        for weight in model.parameters():
            weight += 0.3 * torch.randn_like(weight)
    return model


def rows(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, FEATURES, generator=torch.Generator().manual_seed(seed))


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
    x = rows(2, num_rows).double()
    expected = torch.stack([twin(model, one) for one in x])
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)


def test_gradients_are_those_of_the_twin() -> None:
    model = banded().double()
    x = rows(18).double()
    found = torch.autograd.grad(model(x[None]).square().sum(), list(model.parameters()))
    expected = torch.autograd.grad(twin(model, x).square().sum(), list(model.parameters()))
    for (name, _), one, other in zip(model.named_parameters(), found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11, msg=name)


def test_no_row_sees_a_later_one() -> None:
    model = banded()

    def logits(bars: Any) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.from_numpy(bars)[None])[0]

    x = rows(40).numpy()
    before = logits(x)
    for cut in (3, 6, 7, 20, 38):
        changed = x.copy()
        changed[cut + 1 :] *= 3
        assert torch.equal(logits(changed)[: cut + 1], before[: cut + 1])
        assert not torch.equal(logits(changed)[cut + 1 :], before[cut + 1 :])


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_reach_is_exact(layers: int) -> None:
    model = banded(layers=layers)
    assert model.reach == layers * 6 + 1
    x = rows(1, 40)
    before = model(x)[0, -1]
    for back, is_seen in ((model.reach - 1, True), (model.reach, False)):
        changed = x.clone()
        changed[0, -1 - back] += 100.0
        assert bool(model(changed)[0, -1] != before) == is_seen
    beyond = x.clone()
    beyond[0, : -model.reach] = rows(40 - model.reach, seed=9) * 50
    assert torch.equal(model(beyond)[0, -1], before)


@pytest.mark.parametrize("num_rows", [1, 5, 13, 40])
def test_the_last_row_alone_is_that_of_the_batch(num_rows: int) -> None:
    model = banded()
    x = rows(3, num_rows)
    with torch.no_grad():
        torch.testing.assert_close(model.last(x), model(x)[:, -1], rtol=0, atol=1e-6)
        torch.testing.assert_close(model.last(x[:, -model.reach :]), model.last(x), rtol=0, atol=0)


def test_a_band_without_its_gaps_sees_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    model = banded()
    honest = BandedBlock._along
    monkeypatch.setattr(BandedBlock, "_along", lambda self, of_lags, outside: honest(self, of_lags, 0.0))
    x = rows(1, 20)
    changed = x.clone()
    changed[0, 11:] *= 3
    assert not torch.equal(model(changed)[0, :11], model(x)[0, :11])

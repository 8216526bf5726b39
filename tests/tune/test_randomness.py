"""Random numbers of members: functions of seed, draw and position, with the distribution that they promise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.func import vmap

from stoker.tune.randomness import MemberRandom, SeededAttention, SeededDropout, random_bits, seed_model


def bits(seed: int, counter: int = 1, salt: int = 0, shape: tuple[int, ...] = (64, 48)) -> torch.Tensor:
    return random_bits(shape, seed=torch.tensor(seed), counter=torch.tensor(counter), salt=salt)


def slow_bits(seed: int, counter: int, salt: int, shape: tuple[int, ...]) -> list[int]:
    """The slow twin, with Python's integers."""

    def mix(x: int) -> int:
        x &= 0xFFFFFFFF
        x ^= x >> 16
        x = x * 0x7FEB352D & 0xFFFFFFFF
        x ^= x >> 15
        x = x * 0x846CA68B & 0xFFFFFFFF
        return x ^ x >> 16

    key = mix(mix(mix(seed) + salt) + counter * 0x9E3779B9)
    found = []
    for row in range(shape[0]):
        for column in range(shape[1]):
            place = mix(column + 0x01234567) + mix(row + 2 * 0x01234567)
            value = mix((place & 0xFFFFFFFF) ^ key)
            found.append(value - ((value & 0x80000000) << 1))
    return found


@pytest.mark.parametrize(("seed", "counter", "salt"), [(0, 1, 0), (-5, 70_000, 12345), (2**31 - 1, 3, -7)])
def test_bits_are_those_of_the_slow_twin(seed: int, counter: int, salt: int) -> None:
    assert bits(seed, counter, salt, (5, 7)).flatten().tolist() == slow_bits(seed, counter, salt, (5, 7))


def test_bits_are_balanced_and_independent_of_seed_draw_place_and_neighbour() -> None:
    def signs(given: torch.Tensor) -> torch.Tensor:
        return torch.stack([(given >> shift) & 1 for shift in range(32)]).double() * 2 - 1

    first = signs(bits(3, shape=(256, 256)))
    limit = 5 / 256  # five standard errors of a mean of 65,536 signs
    assert first.mean((1, 2)).abs().max() < limit
    others = {
        "seed": signs(bits(4, shape=(256, 256))),
        "draw": signs(bits(3, counter=2, shape=(256, 256))),
        "place": signs(bits(3, salt=1, shape=(256, 256))),
        "column": first.roll(1, 2),
        "row": first.roll(1, 1),
    }
    for name, other in others.items():
        assert (first * other).mean((1, 2)).abs().max() < limit, name


def test_a_position_has_the_same_number_in_a_larger_tensor() -> None:
    assert torch.equal(bits(7, shape=(3, 4, 5)), bits(7, shape=(6, 8, 9))[:3, :4, :5])


def test_uniform_and_normal_numbers_have_their_moments() -> None:
    random = MemberRandom(11)
    uniform, normal = random.uniform(200, 500), random.normal(200, 500)
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.005
    assert abs(uniform.var() - 1 / 12) < 0.002
    assert abs(normal.mean()) < 0.02
    assert abs(normal.std() - 1) < 0.01
    assert not torch.equal(random.uniform(5), random.uniform(5))


@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_dropout_drops_with_its_probability_and_keeps_the_mean(p: float) -> None:
    [dropout] = seed_model(nn.Sequential(nn.Dropout(p)), 5)
    assert isinstance(dropout, SeededDropout)
    x = torch.ones(300, 300)
    y = dropout(x)
    assert abs((y == 0).float().mean() - p) < 0.01
    assert p == 1 or abs(y.mean() - 1) < 0.02 / (1 - p)
    assert torch.equal(dropout.eval()(x), x)


def test_dropout_of_members_in_a_batch_is_that_of_each_alone() -> None:
    x = torch.randn(3, 10, 20)
    alone = []
    for seed in range(3):
        [dropout] = seed_model(nn.Sequential(nn.Dropout(0.1 * (seed + 1))), seed)
        alone.append(dropout(x[seed]))
    [dropout] = seed_model(nn.Sequential(nn.Dropout(0.1)), 0)

    def drop(x: torch.Tensor, seed: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        dropout.__dict__["p"] = p
        counter = torch.zeros_like(seed)
        return torch.func.functional_call(dropout, {"seed": seed, "counter": counter}, (x,))

    together = vmap(drop)(x, torch.arange(3), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64))
    assert torch.equal(together, torch.stack(alone))


@pytest.mark.parametrize("given", [{}, {"bias": False}, {"batch_first": False}])
@pytest.mark.parametrize("masks", ["none", "causal", "padding", "both", "additive", "heads"])
def test_seeded_attention_without_dropout_is_that_of_torch(given: dict[str, Any], masks: str) -> None:
    attention = nn.MultiheadAttention(12, 3, **{"batch_first": True, **given})
    x, y = torch.randn(2, 5, 12), torch.randn(2, 7, 12)
    causal = torch.ones(5, 7, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 7, [False] * 4 + [True] * 3])
    options: dict[str, Any] = {
        "none": {},
        "causal": {"attn_mask": causal},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": causal, "key_padding_mask": padding},
        "additive": {"attn_mask": torch.randn(5, 7)},
        "heads": {"attn_mask": torch.randn(6, 5, 7)},
    }[masks]
    if not attention.batch_first:
        x, y = x.transpose(0, 1), y.transpose(0, 1)
    for need_weights in (True, False):
        expected, weights = attention(x, y, y, need_weights=need_weights, **options)
        [seeded] = seed_model(nn.Sequential(attention), 1)
        assert isinstance(seeded, SeededAttention)
        found, own = seeded(x, y, y, need_weights=need_weights, **options)
        attention.__class__ = nn.MultiheadAttention
        assert torch.allclose(found, expected, atol=1e-6)
        assert (weights is None and own is None) or torch.allclose(weights, own, atol=1e-6)


def test_a_seeded_model_has_the_state_dict_of_the_model() -> None:
    model = nn.TransformerEncoderLayer(8, 2, dropout=0.1)
    names = list(model.state_dict())
    assert list(seed_model(model, 3).state_dict()) == names


def test_attention_that_cannot_be_seeded_is_left_alone() -> None:
    for options in ({"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 4, "vdim": 4}):
        attention = nn.MultiheadAttention(8, 2, dropout=0.1, **options)  # type: ignore[arg-type]
        assert type(seed_model(nn.Sequential(attention), 1)[0]) is nn.MultiheadAttention  # type: ignore[index]

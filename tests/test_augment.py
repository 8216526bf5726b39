"""Augmentations: equal to slow twins, the same for the same seed, for NumPy arrays and tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stoker import augment


def batch_of(kind: str, *shape: int) -> Any:
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    return torch.from_numpy(values) if kind == "torch" else values


def plain(x: Any) -> Any:
    return x.numpy() if isinstance(x, torch.Tensor) else x


def generator_of(kind: str, seed: int = 0) -> Any:
    return torch.Generator().manual_seed(seed) if kind == "torch" else np.random.default_rng(seed)


KINDS = pytest.mark.parametrize("kind", ["numpy", "torch"])
CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "jitter": lambda x, rng: augment.jitter(x, rng),
    "scale": lambda x, rng: augment.scale(x, rng),
    "mask": lambda x, rng: augment.mask(x, rng, share=0.5, length=2),
    "crop": lambda x, rng: augment.crop(x, rng, length=3),
    "mixup": lambda x, rng: augment.mixup(x, rng)[0],
}


@KINDS
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("shape", [(4, 6), (4, 6, 3)])
def test_the_same_seed_gives_the_same_and_another_seed_does_not(kind: str, name: str, shape: tuple[int, ...]) -> None:
    x = batch_of(kind, *shape)
    before = plain(x).copy()
    first, again, other = (CALLS[name](x, generator_of(kind, seed)) for seed in (0, 0, 1))
    assert type(first) is type(x)
    assert first.dtype == x.dtype
    np.testing.assert_array_equal(plain(first), plain(again))
    assert not np.array_equal(plain(first), plain(other))
    np.testing.assert_array_equal(plain(x), before)


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 99), st.data())
def test_crops_are_consecutive_steps_of_their_sample(num: int, steps: int, seed: int, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, steps))
    x = batch_of("numpy", num, steps)
    rng = np.random.default_rng(seed)
    starts = np.random.default_rng(seed).integers(0, steps - length + 1, num)
    cut = augment.crop(x, rng, length=length)
    for i in range(num):
        assert cut[i].tolist() == x[i, starts[i] : starts[i] + length].tolist()


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 5), st.floats(0, 0.9), st.integers(0, 99))
def test_masks_are_spans_of_the_length(num: int, steps: int, length: int, share: float, seed: int) -> None:
    x = batch_of("numpy", num, steps, 2)
    draws = np.random.default_rng(seed).random((num, steps + length - 1))
    masked = augment.mask(x, np.random.default_rng(seed), share=share, length=length, value=-1.0)
    for i in range(num):
        for t in range(steps):
            hidden = any(draws[i, t + length - 1 - back] < 1 - (1 - share) ** (1 / length) for back in range(length))
            assert masked[i, t].tolist() == ([-1.0, -1.0] if hidden else x[i, t].tolist())


@KINDS
def test_the_masked_share_is_as_asked(kind: str) -> None:
    masked = augment.mask(batch_of(kind, 200, 500), generator_of(kind), share=0.3, length=7)
    assert abs(float((masked == 0).sum()) / 100_000 - 0.3) < 0.02


@KINDS
def test_factors_are_one_per_channel(kind: str) -> None:
    x = batch_of(kind, 3, 5, 2)
    factors = plain(augment.scale(x, generator_of(kind))) / plain(x)
    np.testing.assert_allclose(factors, np.broadcast_to(factors[:, :1], factors.shape), rtol=1e-6)


@KINDS
def test_targets_are_mixed_with_the_partners_of_their_inputs(kind: str) -> None:
    x = batch_of(kind, 6, 4)
    mixed, target = augment.mixup(x, generator_of(kind), x[:, 0] * 10, alpha=1.0)
    np.testing.assert_allclose(plain(target), plain(mixed)[:, 0] * 10, rtol=1e-5)
    assert float(mixed.min()) >= 1
    assert float(mixed.max()) <= float(x.max())

"""Augmentations of time series, for `Feed(transform=…)`: NumPy arrays with a NumPy generator, or tensors with a torch generator.

Each takes a batch `[batch, steps]` or `[batch, steps, width]` and a seeded generator, and returns a new batch of the same type; samples
are drawn independently. With the generator that a feed passes, the same position of the same epoch always draws the same, so a resumed
run gets the same batches.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast

import numpy as np
import torch

from stoker._types import Array
from stoker.errors import OptionError

__all__ = ["crop", "jitter", "mask", "mixup", "scale"]

Batch = TypeVar("Batch", bound=Array | torch.Tensor)
Generator = np.random.Generator | torch.Generator


def jitter(x: Batch, rng: Generator, *, std: float = 0.03) -> Batch:
    """Add normal noise to every value.

    Args:
        x: The batch, of floats.
        rng: A generator.
        std: Standard deviation of the noise.

    Returns:
        The batch with noise.

    Raises:
        OptionError: `x` has no steps or does not hold floats, `rng` does not fit `x`, or `std` is negative.

    Example:
        >>> import numpy as np
        >>> from stoker import augment
        >>> augment.jitter(np.zeros((1, 2), dtype=np.float32), np.random.default_rng(0), std=0.1).round(3).tolist()
        [[0.013000000268220901, -0.013000000268220901]]
    """
    _check(x, rng, std=std)
    return cast(Batch, x + std * _normal(x, x.shape, rng))


def scale(x: Batch, rng: Generator, *, std: float = 0.1) -> Batch:
    """Multiply each channel of each sample by one factor, normal around 1.

    Args:
        x: The batch, of floats.
        rng: A generator.
        std: Standard deviation of the factors.

    Returns:
        The scaled batch.

    Raises:
        OptionError: `x` has no steps or does not hold floats, `rng` does not fit `x`, or `std` is negative.

    Example:
        >>> import numpy as np
        >>> from stoker import augment
        >>> scaled = augment.scale(np.ones((2, 3), dtype=np.float32), np.random.default_rng(0))
        >>> bool((scaled == scaled[:, :1]).all())
        True
    """
    _check(x, rng, std=std)
    return cast(Batch, x * (1 + std * _normal(x, (x.shape[0], 1, *x.shape[2:]), rng)))


def mask(x: Batch, rng: Generator, *, share: float = 0.15, length: int = 1, value: float = 0.0) -> Batch:
    """Overwrite spans of steps: every step begins a span of `length` steps with the same probability.

    Args:
        x: The batch.
        rng: A generator.
        share: Share of the steps to overwrite, on average.
        length: Steps per span.
        value: What to write.

    Returns:
        The masked batch.

    Raises:
        OptionError: `x` has no steps, `rng` does not fit `x`, or an option is out of range.

    Example:
        >>> import numpy as np
        >>> from stoker import augment
        >>> augment.mask(np.ones((1, 8)), np.random.default_rng(2), share=0.5, length=2).tolist()
        [[0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0]]
    """
    _check(x, rng, floats=False)
    if not 0 <= share < 1 or length < 1:
        raise OptionError(f"share is {share} and length {length}; expected a share from 0 to below 1 and a length from 1.")
    begins = _uniform(x, (x.shape[0], x.shape[1] + length - 1), rng) < 1 - (1 - share) ** (1 / length)
    hidden = begins[:, length - 1 :]
    for back in range(1, length):
        hidden = hidden | begins[:, length - 1 - back : begins.shape[1] - back]
    masked = x.clone() if isinstance(x, torch.Tensor) else x.copy()
    masked[hidden] = value
    return cast(Batch, masked)


def crop(x: Batch, rng: Generator, *, length: int) -> Batch:
    """Keep `length` consecutive steps of each sample, from a random start.

    Args:
        x: The batch.
        rng: A generator.
        length: Steps to keep.

    Returns:
        The batch, `[batch, length, …]`.

    Raises:
        OptionError: `x` has fewer steps than `length`, or `rng` does not fit `x`.

    Example:
        >>> import numpy as np
        >>> from stoker import augment
        >>> augment.crop(np.arange(10.0)[None], np.random.default_rng(0), length=3).tolist()
        [[6.0, 7.0, 8.0]]
    """
    _check(x, rng, floats=False)
    if not 1 <= length <= x.shape[1]:
        raise OptionError(f"length is {length}; expected 1 to {x.shape[1]}, the steps of the batch.")
    starts = _integers(x, x.shape[1] - length + 1, rng)
    if isinstance(x, torch.Tensor):
        steps = starts[:, None] + torch.arange(length, device=x.device)
        return cast(Batch, x[torch.arange(len(x), device=x.device)[:, None], steps])
    return cast(Batch, x[np.arange(len(x))[:, None], starts[:, None] + np.arange(length)])


def mixup(x: Batch, rng: Generator, *others: Batch, alpha: float = 0.2) -> tuple[Batch, ...]:
    """Mix each sample with another one of the batch: `w * x[i] + (1 - w) * x[partner[i]]`, w from Beta(alpha, alpha).

    Args:
        x: The batch, of floats.
        rng: A generator.
        others: Further entries of the batch, like targets, mixed with the same partners and weights.
        alpha: Parameter of the Beta distribution; small values leave most samples nearly as they are.

    Returns:
        The mixed entries, in the order of the arguments.

    Raises:
        OptionError: Entries do not hold floats or differ in their number of samples, or `alpha` is not positive.

    Example:
        >>> import numpy as np
        >>> from stoker import augment
        >>> x, y = np.eye(2, dtype=np.float32), np.array([[0.0], [1.0]])
        >>> mixed, target = augment.mixup(x, np.random.default_rng(0), y, alpha=1.0)
        >>> mixed.shape, target.shape
        ((2, 2), (2, 1))
    """
    _check(x, rng)
    if not alpha > 0:
        raise OptionError(f"alpha is {alpha}; expected a positive number.")
    if isinstance(x, torch.Tensor):
        generator = cast(torch.Generator, rng)
        shape = torch.full((2, len(x)), alpha, device=x.device)
        first, second = torch._standard_gamma(shape, generator=generator) + torch.finfo(shape.dtype).tiny
        weights: Any = first / (first + second)
        partners: Any = torch.randperm(len(x), generator=generator, device=x.device)
    else:
        numpy_rng = cast(np.random.Generator, rng)
        weights, partners = numpy_rng.beta(alpha, alpha, len(x)), numpy_rng.permutation(len(x))
    mixed = []
    entry: Any
    for entry in (x, *others):
        _check(entry, rng, floats=True, steps=False)
        if len(entry) != len(x):
            raise OptionError(f"entries of {len(x)} and of {len(entry)} samples cannot be mixed; expected the same number.")
        weight = weights.reshape(-1, *(1,) * (entry.ndim - 1))
        weight = weight.to(entry.dtype) if isinstance(entry, torch.Tensor) else weight.astype(entry.dtype)
        mixed.append(weight * entry + (1 - weight) * entry[partners])
    return tuple(mixed)


def _check(x: Array | torch.Tensor, rng: Generator, *, std: float = 0.0, floats: bool = True, steps: bool = True) -> None:
    fits = isinstance(rng, torch.Generator if isinstance(x, torch.Tensor) else np.random.Generator)
    if not fits:
        raise OptionError(
            f"rng is a {type(rng).__name__} but x is a {type(x).__name__}; expected NumPy with NumPy or torch with torch."
        )
    if x.ndim < (2 if steps else 1):
        raise OptionError(f"x has the shape {list(x.shape)}; expected [batch, steps] or [batch, steps, width].")
    is_float = x.dtype.is_floating_point if isinstance(x, torch.Tensor) else x.dtype.kind == "f"
    if floats and not is_float:
        raise OptionError(f"x has the type {x.dtype}; expected floats.")
    if not std >= 0:
        raise OptionError(f"std is {std}; expected 0 or more.")


def _normal(x: Any, shape: tuple[int, ...], rng: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.randn(shape, generator=rng, device=x.device, dtype=x.dtype)
    return rng.standard_normal(shape).astype(x.dtype)


def _uniform(x: Any, shape: tuple[int, ...], rng: Any) -> Any:
    return torch.rand(shape, generator=rng, device=x.device) if isinstance(x, torch.Tensor) else rng.random(shape)


def _integers(x: Any, below: int, rng: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return torch.randint(below, (len(x),), generator=rng, device=x.device)
    return rng.integers(0, below, len(x))

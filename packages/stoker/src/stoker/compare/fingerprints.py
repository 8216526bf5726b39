"""Fingerprints of tensors: integers that are computed on the device, without waiting for it and without drawing a random number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

MAX_COLUMNS = 4096
"""Values of a sample that its fingerprint reads; of a larger sample, this many at equal distances."""


def _words(value: Any, *, rounded: bool) -> Any:
    """The values of a tensor as integers, a row per sample."""
    if value.is_complex():
        value = torch.view_as_real(value)
    value = value.detach().reshape(len(value), -1)
    if value.shape[1] > MAX_COLUMNS:
        value = value[:, :: -(-value.shape[1] // MAX_COLUMNS)]
    if value.is_floating_point():
        value = value.to(torch.bfloat16) if rounded else value
        value = value.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()])
    return value.to(torch.int64)


def _mix(value: Any) -> Any:
    """The finalizer of MurmurHash3 on int64, whose multiplication wraps around."""
    value = (value ^ (value >> 33)) * -49064778989728563
    value = (value ^ (value >> 29)) * -4265267296055464877
    return value ^ (value >> 32)


def row_fingerprints(tensors: Sequence[Any], *, rounded: bool) -> Any:
    """Return an integer per sample, for tensors with as many rows."""
    total = torch.zeros(len(tensors[0]), dtype=torch.int64, device=tensors[0].device)
    for number, value in enumerate(tensors):
        words = _words(value, rounded=rounded)
        factors = _mix(torch.arange(1, words.shape[1] + 1, device=words.device) + 1_000_003 * (number + 1)) | 1
        total = total + (_mix(words + number) * factors).sum(1).to(total.device)
    return _mix(total)


def whole_fingerprint(value: Any) -> Any:
    """Return an integer for all values of a tensor."""
    rows = value.reshape(-1, value.shape[-1]) if value.ndim > 1 else value.reshape(-1, 1)
    if not len(rows):
        return torch.zeros((), dtype=torch.int64)
    words = row_fingerprints([rows], rounded=False)
    return (words * (_mix(torch.arange(1, len(words) + 1, device=words.device)) | 1)).sum()


def perturb(weight: Any, epsilon: float) -> None:
    """Change each value by one rounding error, up or down, without drawing from the program's random numbers."""
    if weight.is_floating_point() and weight.numel():
        size = max(epsilon, torch.finfo(weight.dtype).eps)
        generator = torch.Generator().manual_seed(weight.numel())
        signs = torch.randint(0, 2, weight.shape, generator=generator, dtype=torch.int8).to(weight.device)
        weight.mul_(1 + size * (2 * signs.to(weight.dtype) - 1))


def short_hash(data: bytes) -> int:
    """Return an integer for bytes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=7).digest(), "little")

"""Trees for tests of checkpoints: states of every kind, and the comparison that sees every bit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from stoker.train.state_dict import CARRIERS


def bits(tensor: Tensor) -> Tensor:
    if tensor.dtype.itemsize == 16:
        return torch.view_as_real(tensor.resolve_conj()).view(torch.int64)
    return tensor.view(CARRIERS[tensor.dtype.itemsize])


def is_same(one: Any, other: Any) -> bool:
    """Equal in type, order, and every bit; a loaded tensor is a plain one on the CPU."""
    if isinstance(one, Tensor):
        plain = isinstance(other, Tensor) and one.dtype == other.dtype and one.shape == other.shape
        return plain and torch.equal(bits(one.detach().cpu()), bits(other))
    if isinstance(one, Mapping):
        return type(other) is dict and list(one) == list(other) and all(is_same(one[key], other[key]) for key in one)
    if type(one) is not type(other):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(is_same, one, other))
    if isinstance(one, float):
        return one.hex() == other.hex() if one == one else other != other
    return bool(one == other)


def state(step: int) -> dict[str, Any]:
    """Parts of a small training, which differ from step to step."""
    generator = torch.Generator().manual_seed(step)
    weight = torch.randn(5, 3, generator=generator)
    return {
        "model": {"embed.weight": weight, "head.weight": weight, "norm.count": torch.tensor(step)},
        "optimizer": {"state": {0: {"step": torch.tensor(float(step)), "exp_avg": weight * 2}}, "param_groups": [{"lr": 0.1}]},
        "feed": {"epoch": step // 10, "position": step},
    }

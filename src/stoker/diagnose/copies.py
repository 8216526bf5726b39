"""Copies of batches, whatever they are made of: tensors and arrays anew, what holds them in the same form around."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

MAX_DEPTH = 6
Leaf = torch.Tensor | np.ndarray


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors and arrays within a value."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield value
    elif depth < MAX_DEPTH:
        for part in _parts(value):
            yield from leaves(part, depth + 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif not isinstance(value, str | bytes | int | float | type) and hasattr(value, "__dict__"):
        yield from vars(value).values()


def num_bytes(value: Any) -> int:
    """Bytes of all tensors and arrays within."""
    return sum(one.nbytes for one in leaves(value))


def num_rows(value: Any) -> int | None:
    """The first dimension of the first tensor or array."""
    return next((int(one.shape[0]) for one in leaves(value) if one.ndim), None)


def copied(value: Any, depth: int = 0, *, tensors: bool = True) -> Any:
    """The same batch in memory of its own; without `tensors` only what holds them is new.

    Pinned tensors and those on a device are not copied: that would cost, or hide, the very copy that is looked for.
    """
    if isinstance(value, torch.Tensor):
        return value if not tensors or value.device.type != "cpu" or value.is_pinned() else value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy() if tensors else value
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, tuple):
        parts = [copied(one, depth + 1, tensors=tensors) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [copied(one, depth + 1, tensors=tensors) for one in value]
    if isinstance(value, dict):
        same = copy.copy(value)
        for key, one in value.items():
            same[key] = copied(one, depth + 1, tensors=tensors)
        return same
    if (dataclasses.is_dataclass(value) or isinstance(value, Mapping)) and hasattr(value, "__dict__"):
        return _copied_holder(value, depth, tensors)
    return value


def _copied_holder(value: Any, depth: int, tensors: bool) -> Any:
    same = copy.copy(value)
    same.__dict__.update({key: copied(one, depth + 1, tensors=tensors) for key, one in vars(value).items()})
    return same

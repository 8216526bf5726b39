"""The walker of batches: what a batch contains, and the same batch with other tensors.

A batch is a tensor, or a container of batches:

    dict and other mappings    also UserDict, which Hugging Face's BatchEncoding is
    list, tuple                also NamedTuple
    dataclass                  also frozen ones, and those with slots

Everything else (None, strings, numbers, other objects) is a leaf that is left alone. Arrays are leaves too.
This module does not import torch: without it, no value is a tensor.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Callable, Hashable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def is_tensor(value: object) -> bool:
    """Whether this is a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def entries_of(value: Any) -> list[tuple[Hashable, Any]] | None:
    """The entries of a container with their keys: those of a mapping, names of fields, or positions; None for a leaf."""
    if isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, tuple | list):
        return list(zip(getattr(value, "_fields", None) or range(len(value)), value, strict=True))
    if _is_dataclass(value):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def entry_of(batch: Any, name: str) -> Any:
    """The entry of this name of a mapping, NamedTuple or dataclass; None where the batch has none."""
    if isinstance(batch, Mapping):
        return batch.get(name)
    has_fields = _is_dataclass(batch) or (isinstance(batch, tuple) and hasattr(batch, "_fields"))
    return getattr(batch, name, None) if has_fields else None


def tensors_of(batch: Any) -> list[torch.Tensor]:
    """All tensors of a batch, in order."""
    if is_tensor(batch):
        return [batch]
    return [tensor for _, part in entries_of(batch) or () for tensor in tensors_of(part)]


def map_tensors(batch: Any, function: Callable[[torch.Tensor], torch.Tensor], is_leaf: Callable[[object], bool] = is_tensor) -> Any:
    """The same batch with each tensor (each `is_leaf`) replaced: new containers of the same types, and the same other leaves.

    Dataclasses and mappings are copied without calling their constructor. A mapping that cannot be assigned to becomes a dict.
    """
    if is_leaf(batch):
        return function(batch)
    entries = entries_of(batch)
    if entries is None:
        return batch
    mapped = [(key, map_tensors(part, function, is_leaf)) for key, part in entries]
    if type(batch) is dict or (isinstance(batch, Mapping) and not isinstance(batch, MutableMapping)):
        return dict(mapped)
    if isinstance(batch, Mapping):
        new: Any = copy.copy(batch)
        for key, part in mapped:
            new[key] = part
        return new
    if isinstance(batch, tuple | list):
        parts = [part for _, part in mapped]
        return type(batch)._make(parts) if hasattr(batch, "_make") else type(batch)(parts)
    new = copy.copy(batch)
    for name, part in mapped:
        object.__setattr__(new, str(name), part)  # frozen dataclasses refuse setattr
    return new


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with all tensors on a device; the same object where they are there already."""
    if all(tensor.device == device for tensor in tensors_of(batch)):
        return batch
    return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


def num_rows(batch: Any) -> int | None:
    """The rows of the first tensor of a batch, 1 for a scalar; None where the batch has no tensor."""
    for tensor in tensors_of(batch):
        return len(tensor) if tensor.dim() else 1
    return None


def _is_dataclass(value: Any) -> bool:
    return hasattr(type(value), "__dataclass_fields__")

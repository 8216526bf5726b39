"""Leaves: the tensors, arrays and lists inside a batch, by name. Containers are opened, whatever they are.

A list is ambiguous: it may hold entries (x and y of a whole batch) or samples (one item a row). It holds entries where all its
parts have one length, which then is the number of rows, and samples where they have the same parts of different lengths.
"""

from __future__ import annotations

import dataclasses
import numbers
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Cells = Array | list[Any]
"""One value a row: an array, or a list where values are texts or arrays of different shapes."""

WHOLE = "batch"
"""The name of a batch that is a single array."""
MAX_LIST = 16
"""A longer list of arrays of one shape is one entry."""
MAX_DEPTH = 16


def leaves_of(batch: Any) -> dict[str, Any]:
    """All leaves of a batch."""
    leaves: dict[str, Any] = {}
    _collect(batch, "", leaves)
    return leaves


def leaves_of_item(item: Any) -> dict[str, Any]:
    """All leaves of one item of a dataset, whose tuple of numbers is a tuple of entries."""
    if not isinstance(item, tuple) or hasattr(item, "_fields"):
        return leaves_of(item)
    leaves: dict[str, Any] = {}
    for i, part in enumerate(item):
        _collect(part, f"[{i}]", leaves)
    return leaves


def _collect(value: Any, name: str, leaves: dict[str, Any]) -> None:
    parts = _parts(value)
    if parts is None or name.count(".") + name.count("[") > MAX_DEPTH:
        leaves[name or WHOLE] = value
        return
    for key, part in parts:
        _collect(part, key if not name else f"{name}{key}" if key.startswith("[") else f"{name}.{key}", leaves)


def _parts(value: Any) -> list[tuple[str, Any]] | None:
    """The named parts of a container; None for what is a leaf."""
    if isinstance(value, Mapping):
        return [(str(key), part) for key, part in value.items()]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    if not isinstance(value, list | tuple) or isinstance(value, Column | Stack) or not value or _is_line(value):
        return None
    samples = _samples(value)
    if samples is not None:
        return samples
    fields: Sequence[str] = getattr(value, "_fields", ())
    return [(fields[i] if fields else f"[{i}]", part) for i, part in enumerate(value)]


def _samples(value: Sequence[Any]) -> list[tuple[str, Any]] | None:
    """A list of samples turned into entries; None where the list holds entries that are batches already."""
    if all(_is_line(part) for part in value):
        ragged = len({_kind(part) for part in value}) == 1 and len({len(part) for part in value}) > 1
        stacked = len(value) > MAX_LIST and len({(_kind(part), len(part)) for part in value}) == 1
        return [("[:]", Column(value))] if ragged else [("[:]", Stack(value))] if stacked else None
    if any(_parts(part) is None for part in value):
        return None
    tables: list[dict[str, Any]] = [{} for _ in value]
    for part, leaves in zip(value, tables, strict=True):
        _collect(part, "", leaves)
    names = list(tables[0])
    if any(list(table) != names for table in tables):
        return None
    lengths = {len(leaf) if _is_line(leaf) else -1 for table in tables for leaf in table.values()}
    if len(lengths) == 1 and -1 not in lengths:
        return None  # every leaf has the same length: that is the number of rows
    return [(name, Column([table[name] for table in tables])) for name in names]


class Column(list[Any]):
    """One entry of a list of samples: a leaf, whatever its values are."""


class Stack(list[Any]):
    """Many arrays of one shape, which torch makes of a list in a sample: one entry, whose rows go across them."""


def _is_line(value: Any) -> bool:
    """Whether values stand in a row here: an array, or a list of texts or numbers."""
    if isinstance(value, list | tuple):
        return bool(value) and all(_is_scalar(one) for one in value)
    return is_array(value) and value.ndim > 0


def _kind(line: Any) -> tuple[Any, ...]:
    """What lines of one entry have in common, besides their length."""
    return (str(line.dtype), *line.shape[1:]) if is_array(line) else (isinstance(line[0], str),)


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | bytes | numbers.Number | np.generic)


def is_array(value: Any) -> bool:
    """Whether this is an array of NumPy or a tensor of torch."""
    return isinstance(value, np.ndarray) or is_tensor(value)


def is_tensor(value: Any) -> bool:
    """Whether this is a tensor of torch, without importing torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def cells_of(leaf: Any) -> Cells | None:
    """The values of a leaf, one a row if it has rows; None for what has none."""
    if isinstance(leaf, Column):
        values = [as_array(value) if is_array(value) else value for value in leaf]
        return values if all(value is not None for value in values) else None
    if isinstance(leaf, Stack):
        stack = [np.asarray(line) if isinstance(line, list | tuple) else as_array(line) for line in leaf]
        return None if any(line is None for line in stack) else np.stack([line for line in stack if line is not None], axis=1)
    if isinstance(leaf, list | tuple):
        array = np.asarray(leaf) if leaf and all(isinstance(v, numbers.Number | np.generic) for v in leaf) else None
        return array if array is not None and array.dtype.kind in "biufc" else list(leaf)
    array = as_array(leaf) if is_array(leaf) else None
    return None if array is None or array.ndim == 0 else array.tolist() if array.dtype.hasobject else array


def as_array(value: Any) -> Array | None:
    """A tensor or array in memory, little-endian, each row in one piece; None for layouts without rows."""
    if is_tensor(value):
        torch = sys.modules["torch"]
        if value.layout is not torch.strided or value.is_nested or value.is_quantized or value.is_meta:
            return None
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.dtype is torch.bfloat16:
            value = value.float()
        elif value.dtype.is_floating_point and value.dtype.itemsize == 1:
            value = value.view(torch.uint8)
        value = value.numpy()
    array: Array = np.ascontiguousarray(value) if value.ndim else value
    return array.astype(array.dtype.newbyteorder("<")) if array.dtype.byteorder == ">" else array


def describe(leaf: Any) -> str:
    """What a leaf without rows is."""
    if _is_scalar(leaf) or (is_array(leaf) and leaf.ndim == 0):
        return "one value for the whole batch"
    return f"a {type(leaf).__name__}"

"""The slow, obvious definition of sequences: a loop over contexts that selects rows one by one, in plain Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def first_keys(keys: Sequence[Any]) -> list[Any]:
    """Distinct keys as they first appear."""
    return list(dict.fromkeys(keys))


def rows_of(keys: Sequence[Any], context: Any, max_length: int | None) -> list[int]:
    """The first rows of a context."""
    return [row for row, key in enumerate(keys) if key == context][:max_length]


def padded(
    keys: Sequence[Any], columns: Mapping[str, Array], *, max_length: int | None = None, contexts: Sequence[Any] | None = None
) -> tuple[dict[str, Array], list[int]]:
    """Columns [contexts, steps, 1], and the lengths."""
    chosen = first_keys(keys) if contexts is None else list(contexts)
    rows = [rows_of(keys, context, max_length) for context in chosen]
    steps = max_length if max_length is not None else max(map(len, rows), default=0)
    result = {}
    for name, values in columns.items():
        result[name] = np.zeros((len(chosen), steps, 1), dtype=values.dtype)
        for number, mine in enumerate(rows):
            for step, row in enumerate(mine):
                result[name][number, step, 0] = values[row]
    return result, [len(mine) for mine in rows]


def packed(
    keys: Sequence[Any], columns: Mapping[str, Array], *, max_length: int | None = None, contexts: Sequence[Any] | None = None
) -> tuple[dict[str, Array], list[int]]:
    """Columns [steps], and where each sequence begins, with the end of the last."""
    chosen = first_keys(keys) if contexts is None else list(contexts)
    rows = [rows_of(keys, context, max_length) for context in chosen]
    order = [row for mine in rows for row in mine]
    bounds = [0]
    for mine in rows:
        bounds.append(bounds[-1] + len(mine))
    return {name: values[order] for name, values in columns.items()}, bounds


def same_bits(tensor: Any, array: Array) -> bool:
    """Whether a tensor and an array are equal in type, shape and every bit."""
    found = tensor.cpu().numpy()
    return found.dtype == array.dtype and found.shape == array.shape and found.tobytes() == array.tobytes()

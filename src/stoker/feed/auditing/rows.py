"""Rows: a batch of any shape as named entries with one value a row. The first step of an audit.

Packed batches are cut at their `cu_seqlens`, and rows where `valid` is False are masked. What has no value a row is left out
by name, never guessed at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.feed.auditing.leaves import Array, Cells, Column, cells_of, describe, is_array, leaves_of, leaves_of_item

BOUNDS = "cu_seqlens"
VALID = "valid"


@dataclass(frozen=True, kw_only=True)
class Rows:
    """A batch as rows."""

    num_rows: int
    entries: dict[str, Cells]
    others: dict[str, str]
    """Entries without one value a row, and what they are."""
    originals: dict[str, Any]
    """Tensors and arrays as they came, whether by rows or not: what a loader might write over later."""
    packed: frozenset[str] = frozenset()
    """Entries whose rows lie end to end, cut at `bounds`."""
    bounds: Array | None = None
    valid: Array | None = None
    """Which rows are samples; None for all."""

    @property
    def num_samples(self) -> int:
        """Rows that are not masked."""
        return self.num_rows if self.valid is None else int(np.count_nonzero(self.valid))


def rows_of(batch: Any) -> Rows:
    """Look at a batch as rows. Tensors on a device are copied to memory."""
    leaves = leaves_of(batch)
    cells = {name: cells_of(leaf) for name, leaf in leaves.items()}
    known = {name: found for name, found in cells.items() if found is not None}
    others = {name: describe(leaves[name]) for name, found in cells.items() if found is None}
    arrays = {name: found for name, found in known.items() if isinstance(found, np.ndarray)}
    bounds_name, bounds = _bounds(arrays)
    num_rows = len(bounds) - 1 if bounds is not None else _common_length(known)
    entries: dict[str, Cells] = {}
    packed = set()
    for name, found in known.items():
        if name == bounds_name:
            others[name] = "where packed rows begin"
        elif len(found) == num_rows:
            entries[name] = found
        elif bounds is not None and len(found) == bounds[-1]:
            entries[name] = found
            packed.add(name)
        else:
            others[name] = f"{len(found):,} values for {num_rows:,} rows"
    return Rows(
        num_rows=num_rows,
        entries=entries,
        others=others,
        originals={name: leaf for name, leaf in leaves.items() if is_array(leaf)},
        packed=frozenset(packed),
        bounds=bounds,
        valid=_valid(entries),
    )


def rows_of_items(items: Sequence[Any]) -> Rows:
    """Look at the items of a dataset as rows, one each, before anyone has made a batch of them."""
    columns: dict[str, list[Any]] = {}
    for item in items:
        for name, leaf in leaves_of_item(item).items():
            columns.setdefault(name, []).append(leaf)
    cells = {name: cells_of(Column(column)) for name, column in columns.items() if len(column) == len(items)}
    others = {
        name: f"{len(column):,} values for {len(items):,} items" for name, column in columns.items() if cells.get(name) is None
    }
    entries = {name: found for name, found in cells.items() if found is not None}
    return Rows(num_rows=len(items), entries=entries, others=others, originals={})


def _valid(entries: dict[str, Cells]) -> Array | None:
    mask = entries.get(VALID)
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.ndim == 1:
        del entries[VALID]
        return mask
    return None


def _bounds(arrays: dict[str, Array]) -> tuple[str, Array | None]:
    for name, array in arrays.items():
        if name.rpartition(".")[2] == BOUNDS and array.ndim == 1 and array.dtype.kind in "iu" and len(array):
            rising = array[0] == 0 and bool(np.all(array[1:] >= array[:-1]))
            if rising and any(len(other) == array[-1] for one, other in arrays.items() if one != name):
                return name, array
    return "", None


def _common_length(known: dict[str, Cells]) -> int:
    lengths = Counter(len(cells) for cells in known.values())
    return lengths.most_common(1)[0][0] if lengths else 0

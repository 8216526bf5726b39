"""Appearance: types, shapes and non-finite values of the entries, batch by batch. Gives notes, never faults."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stoker.feed.auditing.finding import Finding, counted, shown
from stoker.feed.auditing.leaves import Array
from stoker.feed.auditing.rows import Rows

MAX_ENTRIES = 6
"""Entries that a note names one by one."""


class Appearance:
    """What batches looked like so far."""

    def __init__(self) -> None:
        self._num_batches = 0
        self._first: dict[str, str] = {}
        self._changes: dict[str, tuple[int, str, int]] = {}
        self._nonfinite: dict[str, tuple[int, int, str]] = {}

    def add(self, rows: Rows, index: int) -> None:
        """Look at a batch, the `index`-th of its epoch."""
        looks = {name: _look(rows, name) for name in rows.entries} | dict(rows.others)
        for name in {**self._first, **looks}:
            look = looks.get(name, "absent")
            first = self._first.setdefault(name, look if not self._num_batches else "absent")
            if look != first:
                batch, seen, number = self._changes.get(name, (index, look, 0))
                self._changes[name] = (batch, seen, number + 1)
        for name, cells in rows.entries.items():
            if isinstance(cells, np.ndarray) and cells.dtype.kind in "fc":
                self._count(name, cells, rows, index)
        self._num_batches += 1

    def findings(self) -> Iterator[Finding]:
        """Notes on what changed and what is not finite."""
        if self._changes:
            parts = []
            for name, (batch, look, number) in list(self._changes.items())[:MAX_ENTRIES]:
                share = f"{number:,} of {counted(self._num_batches, 'batch')} differ"
                parts.append(f"{name!r} is {self._first[name]} at first, but {look} in batch {batch:,} ({share})")
            yield Finding(kind="shapes", severity="note", text=shown(parts, len(self._changes)), count=len(self._changes))
        if self._nonfinite:
            parts = [
                f"{name!r} has {nan:,} NaN and {inf:,} infinite values, first in {place}"
                for name, (nan, inf, place) in list(self._nonfinite.items())[:MAX_ENTRIES]
            ]
            total = sum(nan + inf for nan, inf, _ in self._nonfinite.values())
            yield Finding(kind="not finite", severity="note", text=shown(parts, len(self._nonfinite)), count=total)

    def _count(self, name: str, cells: Array, rows: Rows, index: int) -> None:
        with np.errstate(all="ignore"):
            if np.isfinite(cells.sum()):  # one pass without a mask; a sum may overflow, then the values are counted
                return
        by_row = name not in rows.packed
        if by_row and rows.valid is not None:
            cells = np.where(rows.valid.reshape(-1, *[1] * (cells.ndim - 1)), cells, 0)
        bad = ~np.isfinite(cells)
        if not bad.any():
            return
        nan, inf, place = self._nonfinite.get(name, (0, 0, ""))
        row = f" row {int(np.flatnonzero(bad.reshape(len(cells), -1).any(axis=1))[0]):,}" if by_row else ""
        num_nan = int(np.count_nonzero(np.isnan(cells)))
        found = int(np.count_nonzero(bad)) - num_nan
        self._nonfinite[name] = (nan + num_nan, inf + found, place or f"batch {index:,}{row}")


def _look(rows: Rows, name: str) -> str:
    cells = rows.entries[name]
    if isinstance(cells, list):
        return "a list"
    shape = ", ".join(map(str, cells.shape[1:]))
    return f"{cells.dtype}[{shape}]" if shape else str(cells.dtype)

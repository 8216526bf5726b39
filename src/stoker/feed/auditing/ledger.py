"""The ledger of an epoch: which sample each row was, batch by batch. Eight bytes a row."""

from __future__ import annotations

import numpy as np

from stoker.feed.auditing.leaves import Array

UNKNOWN = -1


class Ledger:
    """Rows in the order in which they came."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.complete = True
        """Whether the epoch was followed to its end."""
        self._ends: list[int] = []
        self._identities: list[Array] = []
        self._places: dict[int, Array] = {}

    @property
    def num_batches(self) -> int:
        """Batches so far."""
        return len(self._ends)

    @property
    def num_rows(self) -> int:
        """Rows so far that are not masked."""
        return self._ends[-1] if self._ends else 0

    @property
    def starts(self) -> Array:
        """Where each batch begins, and the end of the last."""
        return np.array([0, *self._ends], dtype=np.int64)

    @property
    def identities(self) -> Array:
        """The identity of each row, or UNKNOWN."""
        if len(self._identities) != 1:
            self._identities = [np.concatenate([np.zeros(0, np.int64), *self._identities])]
        return self._identities[0]

    def add_batch(self, num_rows: int, valid: Array | None) -> None:
        """Note that a batch came, with so many rows that are samples."""
        if valid is not None and not valid.all():
            self._places[self.num_batches] = np.flatnonzero(valid)
        self._ends.append(self.num_rows + num_rows)

    def add_identities(self, identities: Array) -> None:
        """Note who the next rows are."""
        self._identities.append(identities)

    def place(self, row: int) -> str:
        """Where a row was, for people."""
        batch = int(np.searchsorted(self._ends, row, side="right"))
        within = row - (self._ends[batch - 1] if batch else 0)
        if batch in self._places:
            within = int(self._places[batch][within])
        return f"batch {batch:,} row {within:,}"

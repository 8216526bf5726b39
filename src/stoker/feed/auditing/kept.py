"""Kept batches: an audit holds on to some of what it was given, and looks again whether it is still the same.

The first batches are held to the end, the latest for a while; a loader that writes into memory it has handed out is caught
by the hash of that memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stoker.feed.auditing.finding import Finding, counted
from stoker.feed.auditing.fingerprint import seal
from stoker.feed.auditing.leaves import as_array, is_tensor
from stoker.feed.auditing.rows import Rows

NUM_KEPT = 8
AGES = (1, 2, 4, 8)
"""After how many further batches a batch is looked at again."""
MAX_BYTES = 2**28
"""Memory that kept batches may hold; at least one is always kept."""


@dataclass
class _Batch:
    number: int
    tensors: dict[str, Any]
    seals: dict[str, int]
    num_rows: int
    addresses: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        return sum(size for _, size in self.addresses.values())


class Kept:
    """Batches of one epoch that are held, with the hash that each had when it came."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._first: list[_Batch] = []
        self._latest: list[_Batch] = []
        self._changed: dict[int, str] = {}
        self._same: dict[int, int] = {}
        self._num_seen = 0

    def add(self, rows: Rows) -> None:
        """Hold a batch, and look again at those before it."""
        batch = self._hold(rows)
        for kept in self._held():
            age = batch.number - kept.number
            if age in AGES:
                self._look_again(kept, age, batch)
            if kept.number not in self._changed and _same_memory(kept, batch):
                self._same.setdefault(batch.number, kept.number)
        self._latest = [kept for kept in self._latest if batch.number - kept.number < NUM_KEPT]
        if sum(kept.num_bytes for kept in self._held()) + batch.num_bytes > MAX_BYTES:
            self._latest = self._latest[-1:]
        elif len(self._first) < NUM_KEPT:
            self._first.append(batch)
        self._latest.append(batch)

    def skip(self) -> None:
        """Count a batch without rows."""
        self._num_seen += 1

    def close(self) -> Finding | None:
        """Look at everything held a last time; the finding, if any memory changed or came twice."""
        for kept in self._held():
            self._look_again(kept, self._num_seen - 1 - kept.number, None)
        epoch = f" of epoch {self._epoch}" if self._epoch else ""
        if self._changed:
            number, how = min(self._changed.items())
            text = (
                f"{counted(len(self._changed), 'batch')}{epoch} changed after being handed out: batch {number:,} {how}. "
                f"Whoever keeps a batch, or copies it asynchronously, trains on the wrong samples."
            )
            return Finding(kind="reused memory", severity="fault", text=text, count=len(self._changed))
        if self._same:
            later, earlier = min(self._same.items())
            text = (
                f"{counted(len(self._same), 'batch')}{epoch} came in memory that an earlier one had not given back: "
                f"batch {later:,} is the memory and content of batch {earlier:,}."
            )
            return Finding(kind="reused memory", severity="fault", text=text, count=len(self._same))
        return None

    def _held(self) -> list[_Batch]:
        return list({kept.number: kept for kept in (*self._first, *self._latest)}.values())

    def _hold(self, rows: Rows) -> _Batch:
        batch = _Batch(self._num_seen, dict(rows.originals), {}, rows.num_samples)
        for name, tensor in rows.originals.items():
            cells = rows.entries.get(name)
            array = cells if isinstance(cells, np.ndarray) else as_array(tensor)
            if array is not None and array.nbytes:
                batch.seals[name] = seal(array)
                batch.addresses[name] = (_address(tensor), array.nbytes)
        self._num_seen += 1
        return batch

    def _look_again(self, kept: _Batch, age: int, newest: _Batch | None) -> None:
        if age < 1 or kept.number in self._changed:
            return
        for name, before in kept.seals.items():
            array = as_array(kept.tensors[name])
            if array is None or seal(array) == before:
                continue
            now = seal(array)
            others = [batch for batch in (newest, *self._held()) if batch is not None and batch is not kept]
            heir = next((batch.number for batch in others if batch.seals.get(name) == now), None)
            holds = f" and now holds that of batch {heir:,}" if heir is not None else ""
            self._changed[kept.number] = f"had its {name!r} changed by the time {counted(age, 'further batch')} had come{holds}"
            return


def _same_memory(one: _Batch, other: _Batch) -> bool:
    """Whether every entry of two batches with more than one row lies at the same place."""
    return bool(one.addresses) and one.num_rows > 1 and one.addresses == other.addresses


def _address(tensor: Any) -> int:
    return int(tensor.data_ptr()) if is_tensor(tensor) else int(tensor.__array_interface__["data"][0])

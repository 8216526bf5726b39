"""Waiting: keys are collected until there are enough of them to be worth a sort."""

from __future__ import annotations

import numpy as np

from stoker.encode.statistics.keys import Keys
from stoker.encode.statistics.runs import Run

ENOUGH = 1 << 18


class Waiting:
    """Keys that have come in and are not sorted yet; arrays that are given become its own."""

    def __init__(self) -> None:
        self._arrays: list[Keys] = []
        self._num_keys = 0

    def add(self, keys: Keys) -> Run | None:
        """Take in keys; returns all that have waited as a run, once they are enough."""
        if len(keys):
            self._arrays.append(keys)
            self._num_keys += len(keys)
        return self.flush() if self._num_keys >= ENOUGH else None

    def flush(self) -> Run:
        """All that have waited."""
        arrays, self._arrays, self._num_keys = self._arrays, [], 0
        if not arrays:
            return Run.empty()
        return Run.of(arrays[0] if len(arrays) == 1 else np.concatenate(arrays))

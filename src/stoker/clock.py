"""THE clock: the one place where time is read for measurements. Spans go into a ring of fixed size; off, it costs nothing."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt

now_ns = time.perf_counter_ns


def now_utc() -> str:
    """The time of day for records, to the millisecond: 2026-11-15T16:20:00.123Z. Never for measurements: it may jump."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Spans:
    """The last spans of one kind of work, and the sum of all of them."""

    __slots__ = ("_starts", "_stops", "count", "total_ns")

    def __init__(self, capacity: int = 1024) -> None:
        self._starts = np.zeros(capacity, dtype=np.int64)
        self._stops = np.zeros(capacity, dtype=np.int64)
        self.count = 0
        self.total_ns = 0

    def add(self, start_ns: int, stop_ns: int) -> None:
        """Take in one span."""
        place = self.count % len(self._starts)
        self._starts[place] = start_ns
        self._stops[place] = stop_ns
        self.count += 1
        self.total_ns += stop_ns - start_ns

    @property
    def seconds(self) -> float:
        """All spans together."""
        return self.total_ns / 1e9

    def recent_seconds(self) -> npt.NDArray[Any]:
        """How long each of the last spans was, the oldest first."""
        size = len(self._starts)
        places = np.arange(max(0, self.count - size), self.count) % size
        return np.asarray((self._stops[places] - self._starts[places]) / 1e9)

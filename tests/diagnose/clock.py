"""A clock that ticks only when a test says so."""

from __future__ import annotations

MS = 1_000_000


class Clock:
    """Takes the place of `now_ns`."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now

    def tick(self, milliseconds: int) -> None:
        self.now += milliseconds * MS

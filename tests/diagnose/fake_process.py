"""A process of a program, played: it takes a known time per step, ends when it is told to, or fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stoker.diagnose.measurements import Stretch

LOSSES = [1.0, 0.5, 0.25]


class FakeProcess:
    """A process that takes `seconds` per step; after `windows` of them it comes to its end.

    `log` gets its name at each window, with + before when it is ready and - when it ends. `factor` is that of each window.
    """

    def __init__(
        self,
        seconds: float = 1.0,
        *,
        name: str = "base",
        log: list[str] | None = None,
        windows: int = 1000,
        losses: list[float] = LOSSES,
        error: str | None = None,
        sites: Any = None,
        factor: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.seconds, self.name, self.windows, self.factor = seconds, name, windows, factor
        self.log = log if log is not None else []
        self.losses, self.error, self.sites, self.peak_bytes = losses, error, sites, 1000

    def is_ready(self) -> bool:
        """Say whether it can be measured."""
        self.log.append(f"+{self.name}")
        return self.error is None

    def stretch(self, seconds: float) -> Stretch | None:
        """Return a window, unless it has ended."""
        self.windows -= 1
        if self.windows < 0:
            return None
        self.log.append(self.name)
        return Stretch(seconds=[self.seconds * self.factor()] * 5)

    def end(self) -> None:
        """End it."""
        self.log.append(f"-{self.name}")

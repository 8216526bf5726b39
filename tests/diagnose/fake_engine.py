"""The engine of comparisons, played: versions take a known time per step and have known losses, or fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import msgspec
from tests.compare.observations import observed

from stoker.compare.engine import judge
from stoker.compare.receipt import Receipt
from stoker.compare.rounds import LEAST_PAIRS, Pairs
from stoker.compare.sides import Version
from stoker.errors import TrainError

LOSSES = observed().losses
Result = float | dict[str, Any]
"""The seconds of a step, or `seconds`, `losses`, `error` and `pairs`."""


class FakeEngine:
    """Compares each version with a program whose steps take `base` seconds. `play` gives the result of a version."""

    def __init__(self, play: Callable[[Version], Result], *, base: float = 0.01, again: list[float] | None = None) -> None:
        self.play, self.base, self.again = play, base, LOSSES if again is None else again
        self.compared: list[str] = []

    def __call__(self, before: Version, arguments: Any, **options: Any) -> Self:
        """Take the place of the class."""
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def compare(self, after: Version, *, budget: float, width: float, tolerance: float | None, screen: bool) -> Receipt:
        """Return the receipt of simulated runs."""
        self.compared.append(after.title)
        result = self.play(after)
        given = result if isinstance(result, dict) else {"seconds": result}
        if "error" in given:
            raise TrainError(given["error"])
        pairs = given.get("pairs", LEAST_PAIRS)
        first, second = observed(self.base), observed(given.get("seconds", self.base), losses=given.get("losses", LOSSES))
        timed = Pairs([msgspec.structs.replace(first, losses=self.again)] * pairs, [second] * pairs)
        yardstick = [loss * (1 + 1e-7) for loss in LOSSES]
        return judge(first, second, [yardstick], timed, tolerance=tolerance, names=("train.py", after.title))

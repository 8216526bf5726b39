"""Lengths: where the series lie in a flat column. All that views know of a store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from stoker.errors import StoreDamaged

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Series end to end: all of one length, or with `offsets` where each begins and the last ends."""

    num_series: int
    num_steps: int
    length: int | None = None
    offsets: Array = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    name: str = "the series"
    """What the numbers are of, for messages."""

    def check(self, series: int) -> None:
        """Refuse what a kernel found out of bounds: `series` is its number, or -1 if there is none."""
        if series >= 0:
            self._refuse(series)

    def _refuse(self, series: int) -> NoReturn:
        raise StoreDamaged(
            f"{self.name}: the offsets of series {series:,} are {self.offsets[series]:,} and {self.offsets[series + 1]:,} "
            f"of {self.num_steps:,}. Run `stoker verify`."
        )

"""The range of decimal places that digits are written for. Apart from the kernels: small inputs need no numba."""

from __future__ import annotations

import operator
from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

from stoker.errors import OptionError

HIGHEST, LOWEST = 49, -20
"""Beyond these places a printed number has no digits: see docs/encoding/digits.md."""
MAX_DECIMAL, MIN_DECIMAL = 18, -8
"""The default window."""


@dataclass(frozen=True)
class DigitWindow:
    """The places from `max_decimal` down to `min_decimal`, both included."""

    max_decimal: int = MAX_DECIMAL
    min_decimal: int = MIN_DECIMAL

    def __post_init__(self) -> None:
        for name in ("max_decimal", "min_decimal"):
            given = getattr(self, name)
            try:
                if isinstance(given, bool):
                    raise TypeError
                object.__setattr__(self, name, operator.index(given))
            except TypeError:
                raise OptionError(f"{name} is {given!r}; expected an integer.") from None
        if not LOWEST <= self.min_decimal <= self.max_decimal <= HIGHEST:
            raise OptionError(
                f"max_decimal is {self.max_decimal} and min_decimal {self.min_decimal}, but places end at {HIGHEST} and {LOWEST}. "
                f"Choose {LOWEST} <= min_decimal <= max_decimal <= {HIGHEST}."
            )

    @staticmethod
    def asked(max_decimal: int | None, min_decimal: int | None) -> DigitWindow:
        """The requested window; a bound that is None is as far as possible."""
        return DigitWindow(HIGHEST if max_decimal is None else max_decimal, LOWEST if min_decimal is None else min_decimal)

    @staticmethod
    def derived(used: Collection[int], max_decimal: int | None, min_decimal: int | None) -> DigitWindow:
        """A bound that is None becomes the highest (but at least 0) or lowest place that is used, as far as the other allows."""
        lowest, highest = min(used, default=0), max(used, default=0)
        if max_decimal is None:
            max_decimal = max(highest, 0 if min_decimal is None else min_decimal)
        return DigitWindow(max_decimal, min(lowest, max_decimal) if min_decimal is None else min_decimal)

    @property
    def num_places(self) -> int:
        """Number of columns of digits."""
        return self.max_decimal - self.min_decimal + 1

    @cached_property
    def places(self) -> range:
        """The places in the order of their columns."""
        return range(self.max_decimal, self.min_decimal - 1, -1)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return ("nan", "neg", *(f"E{place}" for place in self.places))

"""Limits: up to where statistics are exact. Parts can be joined only if they were analysed with the same ones."""

from __future__ import annotations

import msgspec

from stoker.encode.statistics.sketch import GROUP
from stoker.errors import OptionError

EXACT = 1 << 20
CATEGORIES = 1 << 16


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many different values are kept."""

    exact: int = EXACT
    """Of a column of numbers or dates: up to so many different values its quantiles are exact; also the block of the sketch."""
    categories: int = CATEGORIES
    """Of a column of texts."""

    def check(self) -> None:
        """Raise `OptionError` for limits that cannot be meant."""
        for name, given in (("exact", self.exact), ("categories", self.categories)):
            if not isinstance(given, int) or isinstance(given, bool):
                raise OptionError(f"{name} is {given!r}, but a whole number is needed.")
        if self.exact < GROUP or self.exact % GROUP or self.exact > 1 << 40:
            raise OptionError(f"exact is {self.exact:,}, but a multiple of {GROUP} is needed, like {EXACT:,}.")
        if self.categories < 1:
            raise OptionError(f"categories is {self.categories:,}, but at least 1 text is kept.")

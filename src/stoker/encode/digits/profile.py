"""Profile: what the digits of a column range over, without writing any of them.

One pass with the scratch of a block, whatever the column's length. Profiles of parts merge into that of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.encode.digits.blocks import filled_blocks
from stoker.encode.digits.layout import widen_ranges
from stoker.encode.digits.limbs import LIMB_PLACES, LOWEST_PLACE
from stoker.encode.digits.numbers import Numbers
from stoker.encode.digits.window import HIGHEST, LOWEST, MAX_DECIMAL, MIN_DECIMAL, Window
from stoker.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class DigitProfile:
    """Counts of a column, and the range of its digits at each place; missing values have no digits."""

    window: Window
    num_rows: int
    num_null: int
    num_negative: int
    num_cut: int
    """How many values have digits other than 0 outside of the window."""
    min_digits: tuple[int, ...]
    """The smallest digit of each place, the highest place first; 0 if there is no value."""
    max_digits: tuple[int, ...]
    """The largest digit of each place."""

    @property
    def used_places(self) -> list[int]:
        """The places at which any digit is not 0, the highest first."""
        return [place for place, digit in zip(self.window.places, self.max_digits, strict=True) if digit]

    def merge(self, other: DigitProfile) -> DigitProfile:
        """The profile of two parts together."""
        if self.window != other.window:
            raise OptionError(f"profiles of {self.window} and {other.window} cannot be merged. Make them with the same places.")
        if not other.num_rows - other.num_null:
            least, most = self.min_digits, self.max_digits
        elif not self.num_rows - self.num_null:
            least, most = other.min_digits, other.max_digits
        else:
            least = tuple(map(min, self.min_digits, other.min_digits))
            most = tuple(map(max, self.max_digits, other.max_digits))
        return DigitProfile(
            window=self.window,
            num_rows=self.num_rows + other.num_rows,
            num_null=self.num_null + other.num_null,
            num_negative=self.num_negative + other.num_negative,
            num_cut=self.num_cut + other.num_cut,
            min_digits=least,
            max_digits=most,
        )


def profile_digits(
    values: Any, *, max_decimal: int = MAX_DECIMAL, min_decimal: int = MIN_DECIMAL, name: str | None = None
) -> DigitProfile:
    """What `split_digits` would give, in numbers: missing and negative values, and the digits at each place."""
    return profile_numbers(Numbers.of(values, name=name), Window(max_decimal, min_decimal))


def profile_numbers(numbers: Numbers, window: Window) -> DigitProfile:
    """The profile of a column that is seen as numbers already."""
    least = np.full(window.num_places, 9, dtype=np.int8)
    most = np.zeros(window.num_places, dtype=np.int8)
    num_null = num_negative = num_cut = 0
    for _, block in filled_blocks(numbers, window):
        rows = block.num_rows
        widen_ranges(
            block.limbs,
            block.filled,
            block.null,
            rows,
            LIMB_PLACES,
            LOWEST_PLACE,
            window.max_decimal,
            window.min_decimal,
            least,
            most,
        )
        num_null += int(np.count_nonzero(block.null[:rows]))
        num_negative += int(np.count_nonzero(block.negative[:rows]))
        num_cut += block.num_cut
    if num_null == numbers.num_rows:
        least[:] = 0
    return DigitProfile(
        window=window,
        num_rows=numbers.num_rows,
        num_null=num_null,
        num_negative=num_negative,
        num_cut=num_cut,
        min_digits=tuple(least.tolist()),
        max_digits=tuple(most.tolist()),
    )


def derive_window(numbers: Numbers, max_decimal: int | None, min_decimal: int | None) -> Window:
    """The window that is asked for; a bound that is None is taken from the values."""
    window = Window.asked(max_decimal, min_decimal)
    if max_decimal is None or min_decimal is None:
        found = profile_numbers(numbers, Window(HIGHEST, LOWEST))
        window = Window.derived(found.used_places, max_decimal, min_decimal)
    return window

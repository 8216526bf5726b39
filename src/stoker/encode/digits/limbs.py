"""Limbs: a block of values as fixed-point decimals, eight places a number; between the raw values and all that is made of them.

Limb 3 holds the places 0 to 7, limb 2 the eight decimals, and so on from place -24 up to 55. Nearly all values are placed by
float64 arithmetic that is proven to be right where it is used, many at a time; the few others are left to `digits_shortest`.

Why it is right. Let a be the value, s the decimal that is printed for it, and t = fl(a * scale) with t < 1e15.
- s lies within half a step of a (or within 5e-21, where it is rounded at 1e-20), so s * scale is within t * 2**-52 + 5e-13 of t.
  If no whole number is as near to t as twice that, s * scale and t are cut to the same whole number.
- If m = rint(t) has at most 15 digits and m / scale == a, then m / scale is the only decimal of at most 15 digits that reads
  as a, hence the shortest one. Whole numbers below 2**53 are a step or more apart, so they are printed exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.digits.product import LOWEST_POWER, powers_of_ten
from stoker.encode.digits.shortest import place_shortest
from stoker.encode.digits.window import Window
from stoker.kernel import kernel

Array = npt.NDArray[Any]

BLOCK = 2048
"""Rows of a block: its limbs stay in the caches, and a call is paid by many rows."""

NUM_LIMBS, LIMB_PLACES, LOWEST_PLACE = 10, 8, -24
_POINT = 3
_TENS = 10 ** np.arange(19, dtype=np.uint64)

_MAX_DECIMALS = 8
_TOO_LARGE = 1e15
_WHOLE = 2.0**53
_RELATIVE, _ABSOLUTE = 2.0**-51, 1e-11
_FEW_DECIMALS, _FEW_LIMIT = 1e4, 1e11


class Block:
    """Up to 2048 values: `limbs[i, row]`, whether limb i is `filled` anywhere, and the flags `null` and `negative` of each row."""

    def __init__(self, window: Window):
        self.window = window
        self.num_rows = self.num_cut = 0
        self.limbs = np.zeros((NUM_LIMBS, BLOCK), dtype=np.int32)
        self.filled = np.zeros(NUM_LIMBS, dtype=np.uint8)
        self.null = np.zeros(BLOCK, dtype=np.uint8)
        self.negative = np.zeros(BLOCK, dtype=np.uint8)
        self._open = np.zeros(BLOCK, dtype=np.uint8)
        decimals = min(max(-window.min_decimal, 0), _MAX_DECIMALS)
        self._scale = float(10**decimals)
        self._may_cut = window.min_decimal >= -_MAX_DECIMALS
        self._step = float(10 ** max(window.min_decimal, 0))
        self._ceiling = float(f"1e{window.max_decimal + 1}")

    def fill(self, values: Array) -> int:
        """Place the values of a block (float64, contiguous, read-only); returns the first infinite one, or -1."""
        self.num_rows = len(values)
        num_open, self.num_cut = place_most(
            values,
            self._scale,
            self._may_cut,
            self._step,
            self._ceiling,
            self.limbs,
            self.filled,
            self.null,
            self.negative,
            self._open,
        )
        if not num_open:
            return -1
        pending = np.flatnonzero(self._open[: len(values)])
        top, bottom = self.window.max_decimal, self.window.min_decimal
        num_cut, infinite = place_shortest(
            values.view(np.uint64),
            pending,
            powers_of_ten(),
            LOWEST_POWER,
            _TENS,
            self.limbs,
            LOWEST_PLACE,
            self.filled,
            top,
            bottom,
        )
        self.num_cut += num_cut
        return infinite


@kernel
def place_most(
    values: Array,
    scale: float,
    may_cut: bool,
    step: float,
    ceiling: float,
    limbs: Array,
    filled: Array,
    null: Array,
    negative: Array,
    open_rows: Array,
) -> tuple[int, int]:
    """Place all values for which float64 arithmetic is proven to be right, and mark the others as open.

    Returns how many are open, and how many of the placed ones have digits that no place holds: below 1 / scale (which only
    happens with `may_cut`), below `step`, or from `ceiling` on.
    """
    num_rows = len(values)
    for i in range(len(filled)):
        if filled[i] and not _POINT - 1 <= i <= _POINT + 1:
            limbs[i, :] = 0
        filled[i] = 0
    # Slices, as the compiler makes vectors only where it sees that no index can be negative.
    decimals, ones, upper = limbs[_POINT - 1][:num_rows], limbs[_POINT][:num_rows], limbs[_POINT + 1][:num_rows]
    null, negative, open_rows = null[:num_rows], negative[:num_rows], open_rows[:num_rows]
    few = min(scale, _FEW_DECIMALS)
    any_decimals = any_ones = any_upper = np.int32(0)
    num_open = num_cut = 0
    for i in range(num_rows):
        value = values[i]
        missing = value != value
        a = 0.0 if missing else abs(value)
        large = a * scale >= _TOO_LARGE
        # Numbers with too many digits in front of the point are tried with four decimals, or with none.
        used = (few if a < _FEW_LIMIT else 1.0) if large else scale
        t = a * used
        nearest = np.rint(t)
        between = abs(t - nearest) > t * _RELATIVE + _ABSOLUTE
        down = between and may_cut and not large
        placed = (down or nearest / used == a) and a < _WHOLE
        whole = np.floor(a) if placed else 0.0
        scaled = (np.floor(t) if down else nearest) if placed else 0.0
        high = np.floor(whole / 1e8)
        parts = np.int32((scaled - whole * used) * (1e8 / used)), np.int32(whole - high * 1e8), np.int32(high)
        decimals[i], ones[i], upper[i] = parts
        any_decimals |= parts[0]
        any_ones |= parts[1]
        any_upper |= parts[2]
        null[i] = missing
        negative[i] = value < 0.0
        open_rows[i] = not placed
        num_open += not placed
        num_cut += placed and (down or a >= ceiling or np.floor(whole / step) * step != whole)
    filled[_POINT - 1], filled[_POINT], filled[_POINT + 1] = any_decimals != 0, any_ones != 0, any_upper != 0
    return num_open, num_cut

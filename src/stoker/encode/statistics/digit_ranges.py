"""Digit ranges: the smallest and largest digit at each decimal place of a column, without writing any digit.

It joins the runs of statistics and the kernels of `stoker.encode.digits`; few values are printed instead. The scratch is one
block of 2048 values, whatever the number of rows. Values come sorted, so that the outermost and those next to zero are looked at
first: once every place below the leading one has had 0 and 9, the others cannot change the ranges and are
left out.
Law: ranges are those over the digits of all values, each printed by `np.format_float_positional` with at most 20 decimals.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.digits.window import LOWEST, MAX_DECIMAL, MIN_DECIMAL, Window
from stoker.encode.statistics.keys import Form, Keys, compiled, decode_floats

Array = npt.NDArray[Any]

BLOCK = 2048
"""That of digits: values whose digits are found together."""

_NUM_PLACES = MAX_DECIMAL - LOWEST + 1
_ABOVE = 10.0 ** (MAX_DECIMAL + 1)
_MOST_DIGITS, _LOWEST_POWER = 17, LOWEST - 1
_POWERS = np.array([float(f"1e{power}") for power in range(_LOWEST_POWER, MAX_DECIMAL + 1)])


class DigitRanges:
    """The smallest and largest digits, the highest place first, and the lowest place that any value needs (at most -8)."""

    def __init__(self) -> None:
        self.least = np.full(_NUM_PLACES, 9, dtype=np.int8)
        self.most = np.zeros(_NUM_PLACES, dtype=np.int8)
        self.lowest = MIN_DECIMAL
        self._block: Any = None

    @staticmethod
    def of(least: dict[str, int], most: dict[str, int], num_values: int) -> DigitRanges:
        """Ranges as `named` gives them."""
        ranges = DigitRanges()
        if num_values:
            ranges.least[:] = 0
            ranges.least[: len(least)] = list(least.values())
            ranges.most[: len(most)] = list(most.values())
            ranges.lowest = MAX_DECIMAL + 1 - len(least)
        return ranges

    def named(self, *, num_values: int) -> tuple[dict[str, int], dict[str, int]]:
        """Smallest and largest digits by place: E18 down to E-8, or further down where values have more decimals."""
        places = [f"E{place}" for place in range(MAX_DECIMAL, self.lowest - 1, -1)]
        least = self.least if num_values else np.zeros_like(self.least)
        return dict(zip(places, least.tolist(), strict=False)), dict(zip(places, self.most.tolist(), strict=False))

    def merge(self, other: DigitRanges) -> None:
        """Take in the ranges of other values."""
        self.least = np.minimum(self.least, other.least)
        self.most = np.maximum(self.most, other.most)
        self.lowest = min(self.lowest, other.lowest)

    def add(self, keys: Keys, form: Form) -> None:
        """Widen the ranges by sorted values."""
        kernels = compiled(len(keys))
        if kernels is None:
            self._widen_by_printing(keys, form)
        else:
            self._widen_by_blocks(kernels, keys, form)
        used = np.flatnonzero(self.most)
        self.lowest = min(self.lowest, MAX_DECIMAL - int(used[-1])) if len(used) else self.lowest

    def _widen_by_printing(self, keys: Keys, form: Form) -> None:
        """Print each value, and look at its places."""
        rows = []
        for value in np.abs(decode_floats(keys, form)).tolist():
            text = repr(value)
            if "e" in text:
                text = np.format_float_positional(value, unique=True)
            if len(text.partition(".")[2]) > -LOWEST:
                text = np.format_float_positional(value, unique=True, precision=-LOWEST)
                self.lowest = LOWEST  # a value has still more decimals, and was rounded
            whole, _, decimals = text.partition(".")
            rows.append(whole[-MAX_DECIMAL - 1 :].rjust(MAX_DECIMAL + 1, "0") + decimals.ljust(-LOWEST, "0"))
        if rows:
            digits = np.frombuffer("".join(rows).encode(), dtype=np.int8).reshape(len(rows), _NUM_PLACES) - np.int8(ord("0"))
            self.least, self.most = np.minimum(self.least, digits.min(axis=0)), np.maximum(self.most, digits.max(axis=0))

    def _widen_by_blocks(self, kernels: Any, keys: Keys, form: Form) -> None:
        """Find the digits of blocks of values, of only those that could still widen the ranges."""
        if not len(keys):
            return
        whole = form != "float"
        window = Window(MAX_DECIMAL, 0 if whole else LOWEST)
        if self._block is None:
            self._block = kernels.Block(window)
        if whole:
            self.least[window.num_places :] = 0
        least, most = self.least[: window.num_places], self.most[: window.num_places]
        starts = _outside_in(keys, form)
        sizes, lowest = _sizes(keys, starts, form), MAX_DECIMAL + 1
        # Where a leading digit is higher up than the places that are looked at, nothing is left out.
        reached = _lowest_reached(sizes, window.min_decimal) if sizes.max() < _ABOVE else np.full(len(starts), LOWEST - 1)
        for number, (start, reach) in enumerate(zip(starts.tolist(), reached.tolist(), strict=True)):
            if number < 2 or reach < lowest:
                self._widen(kernels, keys[start : start + BLOCK], form, least, most)
                lowest = kernels.settled_down_to(least, most, MAX_DECIMAL)

    def _widen(self, kernels: Any, keys: Keys, form: Form, least: Array, most: Array) -> None:
        block = self._block
        values = decode_floats(keys, form)
        values.flags.writeable = False  # one kind of array, as kernels are compiled for each
        block.fill(values)
        kernels.widen_block(block, least, most)
        if block.num_cut and form == "float" and block.num_cut > np.count_nonzero(np.abs(values) >= _ABOVE):
            self.lowest = LOWEST  # a value has still more decimals, and was rounded


def settled_down_to(least: Array, most: Array, top: int) -> int:
    """The place down to which values between the outermost ones can no longer widen the ranges, which begin at place `top`.

    That is the case below the leading digit where digits range from 0 to 9. Any range that does not begin at 0 could widen.
    """
    leading = -1
    for i in range(len(most)):
        if least[i] > 0:
            return top + 1
        if leading < 0 and most[i] > 0:
            leading = i
    lowest = leading
    while leading >= 0 and lowest + 1 < len(most) and most[lowest + 1] == 9:
        lowest += 1
    return top - lowest if leading >= 0 else top + 1


def _outside_in(keys: Keys, form: Form) -> npt.NDArray[np.int64]:
    """Where blocks begin: those with the least and the largest value, the one around zero, then all others."""
    starts = np.arange(0, len(keys), BLOCK)
    zero: npt.NDArray[np.uint64] = np.array([0 if form == "uint" else 2**63], dtype=np.uint64)
    around = min(int(np.searchsorted(keys, zero)[0]) // BLOCK * BLOCK, int(starts[-1]))
    first = list(dict.fromkeys([0, int(starts[-1]), around]))
    return np.concatenate([first, starts[~np.isin(starts, first)]])


def _sizes(keys: Keys, starts: npt.NDArray[np.int64], form: Form) -> npt.NDArray[np.float64]:
    """The least and the largest size of the numbers in each block, [2, blocks]."""
    ends = np.stack([decode_floats(keys[places], form) for places in (starts, np.minimum(starts + BLOCK, len(keys)) - 1)])
    across = (ends[0] < 0) & (ends[1] > 0)
    ends = np.sort(np.abs(ends), axis=0)
    ends[0, across] = 0.0
    return ends


def _lowest_reached(sizes: npt.NDArray[np.float64], lowest: int) -> npt.NDArray[np.int64]:
    """The lowest place at which numbers of a block may have a digit: each is printed with at most 17, from its first on."""
    leading = np.searchsorted(_POWERS, sizes[0], side="right") - 1 + _LOWEST_POWER
    return np.asarray(np.maximum(leading - (_MOST_DIGITS - 1), lowest))

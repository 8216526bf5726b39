"""Compiled kernels of digits and statistics: float64 values become decimal digits and back; keys are sorted and counted.

    float64 values ──► `DigitBlock`: fixed-point decimals, eight places per limb ──► `write_columns`, `widen_ranges`
    digits         ──► `join_rows`: the nearest float64

Limb 3 of a block holds the places 0 to 7, limb 2 the eight decimals, and so on from place -24 up to 55. `place_most` places
nearly all values with float64 arithmetic, many at a time; `place_shortest` takes the few for which that is not proven to be right.

Why float64 arithmetic is right. Let a be the value, s the decimal that is printed for it, and t = fl(a * scale) with t < 1e15.
- s lies within half a step of a (or within 5e-21, where it is rounded at 1e-20), so s * scale is within t * 2**-52 + 5e-13 of t.
  If no integer is as near to t as twice that, s * scale and t are cut to the same integer.
- If m = rint(t) has at most 15 digits and m / scale == a, then m / scale is the only decimal of at most 15 digits that reads
  as a, hence the shortest one. Integers below 2**53 are a step or more apart, so they are printed exactly.

`place_shortest` is Schubfach (R. Giulietti, "The Schubfach way to render doubles"), in integers without a loop: the fewest digits
that read back as the same number, and the nearest of those. A number with more than 20 decimals is printed as NumPy does with
`precision=20`: its exact value, rounded half to even at 1e-20. So the digits are those of
`np.format_float_positional(abs(x), unique=True, precision=20)`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from stoker.extend import Array, kernel

BLOCK = 2048
"""Rows per block: its limbs stay in the caches, and the cost of a call is shared by many rows."""
NUM_LIMBS, LIMB_PLACES, LOWEST_PLACE = 10, 8, -24
_POINT = 3
_TENS = 10 ** np.arange(19, dtype=np.uint64)
_MAX_DECIMALS = 8
_TOO_LARGE = 1e15
_WHOLE = 2.0**53
_RELATIVE, _ABSOLUTE = 2.0**-51, 1e-11
_FEW_DECIMALS, _FEW_LIMIT = 1e4, 1e11


class DigitBlock:
    """The digits of up to 2048 values from place `top` down to `bottom`.

    `limbs[i, row]` are eight places, `filled` says whether limb i is not 0 in any row, `null` and `negative` are flags of each row.
    """

    def __init__(self, top: int, bottom: int):
        self.num_rows = self.num_cut = 0
        self.limbs = np.zeros((NUM_LIMBS, BLOCK), dtype=np.int32)
        self.filled = np.zeros(NUM_LIMBS, dtype=np.uint8)
        self.null, self.negative, self._open = np.zeros((3, BLOCK), dtype=np.uint8)
        self._bounds = top, bottom
        scale = float(10 ** min(max(-bottom, 0), _MAX_DECIMALS))
        self._scales = scale, bottom >= -_MAX_DECIMALS, float(10 ** max(bottom, 0)), float(f"1e{top + 1}")

    def fill(self, values: Array) -> int:
        """Place the values of a block (float64, contiguous, read-only); returns the first infinite one, or -1."""
        self.num_rows = len(values)
        num_open, self.num_cut = place_most(values, self._scales, self.limbs, self.filled, self.null, self.negative, self._open)
        if not num_open:
            return -1
        pending = np.flatnonzero(self._open[: len(values)])
        num_cut, infinite = place_shortest(values.view(np.uint64), pending, powers_of_ten(), self.limbs, self.filled, *self._bounds)
        self.num_cut += num_cut
        return infinite

    def write(self, target: Array, start: int) -> None:
        """Write the flags and digits to target[column, start + row], of any integer type."""
        write_columns(self.limbs, self.filled, self.null, self.negative, self.num_rows, *self._bounds, target, start)

    def widen(self, least: Array, most: Array) -> None:
        """Widen the ranges of digits, the highest place of the window first, by the values that are not missing."""
        widen_ranges(self.limbs, self.filled, self.null, self.num_rows, *self._bounds, least, most)


@kernel
def place_most(
    values: Array, scales: Any, limbs: Array, filled: Array, null: Array, negative: Array, open_rows: Array
) -> tuple[int, int]:
    """Place all values for which float64 arithmetic is proven to be right, and mark the others as open.

    Returns how many are open, and how many of the placed ones have digits outside of the window: below 1 / scale (only with
    `may_cut`), below `step`, or from `ceiling` on.
    """
    scale, may_cut, step, ceiling = scales
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


_U = np.uint64
_FRACTION = _U(2**52 - 1)
_HIDDEN = _U(2**52)
_DECIMALS = 20
_FIVES = _U(5**_DECIMALS)
_HIGHEST = 49
_MOST_DIGITS = 17
_LIMB = _U(10**8)


@kernel
def place_shortest(
    bits: Array, pending: Array, powers: Array, limbs: Array, filled: Array, top: int, bottom: int
) -> tuple[int, int]:
    """Place the digits of the values `pending` (as bits) into their limbs.

    Returns how many of them have digits outside of the places `top` to `bottom`, and the first that is infinite (or -1).
    """
    num_cut = 0
    for row in pending:
        word = bits[row]
        biased: Any = np.int64((word >> _U(52)) & _U(2047))
        if biased == 2047:
            return num_cut, row
        mantissa = word & _FRACTION
        closer = mantissa == _U(0) and biased > 1
        if biased:
            mantissa |= _HIDDEN
        exponent = (biased if biased else 1) - 1075
        if mantissa == _U(0):
            continue

        # The shortest decimal `digits * 10**place` within half a step of the value.
        place = (exponent * 1262611 - (524031 if closer else 0)) >> 22
        shift = _U(exponent + ((-place * 1741647) >> 19) + 1)
        power = -place - LOWEST_POWER
        high, low = powers[power, 0], powers[power, 1]
        four = mantissa << _U(2)
        odd = mantissa & _U(1)
        below = _scaled(high, low, (four - (_U(1) if closer else _U(2))) << shift) + odd
        value = _scaled(high, low, four << shift)
        above = _scaled(high, low, (four + _U(2)) << shift) - odd
        digits = value >> _U(2)
        tenth = digits // _U(10)
        down, up = below <= _U(40) * tenth, _U(40) * tenth + _U(40) <= above
        if digits >= _U(10) and down != up:
            digits = tenth + (_U(1) if up else _U(0))
            place += 1
        else:
            down, up = below <= _U(4) * digits, _U(4) * digits + _U(4) <= above
            if down == up:
                middle = _U(4) * digits + _U(2)
                up = value > middle or (value == middle and (digits & _U(1)) == _U(1))
            digits += _U(1) if up else _U(0)

        cut = False
        if place < -_DECIMALS:
            unit = _TENS[min(-_DECIMALS - place, _MOST_DIGITS + 1)]
            cut = digits % unit != _U(0)
            digits = _rounded(mantissa, -exponent - _DECIMALS) if cut else digits // unit
            place = -_DECIMALS

        if place + _MOST_DIGITS > top + 1:  # the leading digit may stand above the window
            num_digits = 1
            while num_digits <= _MOST_DIGITS and digits >= _TENS[num_digits]:
                num_digits += 1
            cut |= place + num_digits > top + 1
            if place + num_digits > _HIGHEST + 1:  # printed numbers end behind 50 digits, so the leading one stands there
                place = _HIGHEST + 1 - num_digits
        if place < bottom:
            cut |= digits % _TENS[min(bottom - place, _MOST_DIGITS)] != _U(0)
        num_cut += cut

        limb = (place - LOWEST_PLACE) >> 3
        unit = _TENS[(place - LOWEST_PLACE) & 7]
        while digits > _U(0):
            part = (digits % _LIMB) * unit
            digits //= _LIMB
            limbs[limb, row] += np.int32(part % _LIMB)
            filled[limb] = 1
            limb += 1
            part //= _LIMB
            if part:
                limbs[limb, row] += np.int32(part)
                filled[limb] = 1
    return num_cut, -1


@kernel
def _scaled(high: Any, low: Any, value: Any) -> Any:
    """The 128-bit number times `value` over 2**128, with the lowest bit set where anything was cut off."""
    middle = high * value
    carry = upper_half(low, value)
    total = middle + carry
    upper = upper_half(high, value) + (_U(1) if total < middle else _U(0))
    return upper | (_U(1) if total > _U(1) else _U(0))


@kernel
def _rounded(mantissa: Any, halvings: int) -> Any:
    """mantissa * 5**20 / 2**halvings, rounded half to even. It is below 2**64."""
    if halvings > 120:
        return _U(0)
    low, high = mantissa * _FIVES, upper_half(mantissa, _FIVES)
    if halvings >= 64:
        by = _U(halvings - 64)
        whole = high >> by
        rest, sticky = high - (whole << by), low != _U(0)
        if by == _U(0):
            half, rest, sticky = _U(2**63), low, False
        else:
            half = _U(1) << (by - _U(1))
    else:
        by = _U(halvings)
        whole = (low >> by) | (high << (_U(64) - by))
        rest, sticky = low & ((_U(1) << by) - _U(1)), False
        half = _U(1) << (by - _U(1))
    up = rest > half or (rest == half and (sticky or (whole & _U(1)) == _U(1)))
    return whole + (_U(1) if up else _U(0))


LOWEST_POWER, HIGHEST_POWER = -292, 324


def _upper_half(typing: Any, a: Any, b: Any) -> tuple[Any, Callable[..., Any]]:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(*(builder.zext(argument, wide) for argument in arguments))
        return builder.trunc(builder.lshr(product, wide(64)), ir.IntType(64))

    return types.uint64(types.uint64, types.uint64), generate


upper_half: Callable[[Any, Any], Any] = intrinsic(_upper_half)
"""The upper 64 bits of the product of two uint64."""


@cache
def powers_of_ten() -> npt.NDArray[np.uint64]:
    """10**p from p = -292 on, as 128 bits: the number (upper, lower) times 2**(floor(log2(10**p)) - 127), rounded up."""
    rows = []
    for power in range(LOWEST_POWER, HIGHEST_POWER + 1):
        numerator, denominator = 10 ** max(power, 0), 10 ** max(-power, 0)
        shift = 127 - (numerator.bit_length() - 1 if power >= 0 else -denominator.bit_length())
        scaled = -(-(numerator << max(shift, 0)) // (denominator << max(-shift, 0)))
        rows.append((scaled >> 64, scaled & (2**64 - 1)))
    table = np.array(rows, dtype=np.uint64)
    table.flags.writeable = False
    return table


# ---- digits out of limbs ----
# Digits are taken off the lower end of a limb, one place of all rows at a time, which the compiler vectorizes.

_TEN = np.uint32(10)


@kernel
def write_columns(
    limbs: Array, filled: Array, null: Array, negative: Array, num_rows: int, top: int, bottom: int, target: Array, first: int
) -> None:
    """Write the flags and the digits from place `top` down to `bottom` to target[column, first + row]."""
    end = first + num_rows
    flags, signs = null[:num_rows], negative[:num_rows]
    column = target[0][first:end]
    for i in range(num_rows):
        column[i] = flags[i]
    column = target[1][first:end]
    for i in range(num_rows):
        column[i] = signs[i]
    rest = np.empty(num_rows, dtype=np.uint32)
    for number in range(len(limbs)):
        low = LOWEST_PLACE + LIMB_PLACES * number
        if low > top or low + LIMB_PLACES <= bottom:
            continue
        limb = limbs[number][:num_rows]
        for i in range(num_rows):
            rest[i] = limb[i]
        for place in range(low, min(low + LIMB_PLACES, top + 1)):
            if not filled[number]:
                if place >= bottom:
                    target[2 + top - place][first:end] = 0
            elif place < bottom:
                for i in range(num_rows):
                    rest[i] //= _TEN
            else:
                column = target[2 + top - place][first:end]
                for i in range(num_rows):
                    left = rest[i] // _TEN
                    column[i] = rest[i] - left * _TEN
                    rest[i] = left


@kernel
def widen_ranges(limbs: Array, filled: Array, null: Array, num_rows: int, top: int, bottom: int, least: Array, most: Array) -> None:
    """Widen least[i] and most[i], the range of digits at place `top` - i, by the rows that are not null.

    A place that has had 0 and 9 cannot widen, so most blocks cost next to nothing.
    """
    flags = null[:num_rows]
    num_null = 0
    for i in range(num_rows):
        num_null += flags[i]
    if num_null == num_rows:
        return
    rest = np.empty(num_rows, dtype=np.uint32)
    for number in range(len(limbs)):
        low, high = max(LOWEST_PLACE + LIMB_PLACES * number, bottom), min(LOWEST_PLACE + LIMB_PLACES * (number + 1) - 1, top)
        settled = True
        for place in range(low, high + 1):
            if not filled[number]:
                least[top - place] = 0
            settled = settled and least[top - place] == 0 and most[top - place] == 9
        if settled or not filled[number]:
            continue
        limb = limbs[number][:num_rows]
        for i in range(num_rows):
            rest[i] = limb[i]
        for place in range(LOWEST_PLACE + LIMB_PLACES * number, high + 1):
            smallest, largest = np.uint32(9), np.uint32(0)
            for i in range(num_rows):
                left = rest[i] // _TEN
                digit = rest[i] - left * _TEN
                rest[i] = left
                largest = max(largest, digit)
                smallest = min(smallest, np.uint32(9) if flags[i] else digit)
            if place >= bottom:
                least[top - place] = min(least[top - place], smallest)
                most[top - place] = max(most[top - place], largest)


_FULL, _EXACT = _U(10**18), _U(2**53)
_FLOAT_TENS, _EXACT_POWERS = 10.0 ** np.arange(23), 55


@kernel
def join_rows(matrix: Array, top: int, powers: Array, target: Array, open_rows: Array) -> tuple[int, int, int]:
    """Write the number of each row, and mark rows that cannot be decided here as open.

    Returns how many are open, and row and column of the first entry that is not a digit (or -1).
    """
    bits = target.view(np.uint64)
    num_open = 0
    for row in range(len(matrix)):
        open_rows[row] = 0
        for flag in range(2):
            if not 0 <= matrix[row, flag] <= 1:
                return num_open, row, flag
        digits, place, more = _U(0), top, False
        for column in range(2, matrix.shape[1]):
            digit = matrix[row, column]
            if not 0 <= digit <= 9:
                return num_open, row, column
            if digits < _FULL:
                digits = digits * _U(10) + _U(digit)
                place = top + 2 - column
            else:
                more = more or digit > 0
        sign = _U(matrix[row, 1]) << _U(63)
        if matrix[row, 0]:
            target[row] = np.nan
        elif digits == _U(0):
            bits[row] = sign
        elif digits < _EXACT and not more and -len(_FLOAT_TENS) < place < len(_FLOAT_TENS):
            number = np.float64(digits)  # both are exact, so the one rounding is right
            number = number / _FLOAT_TENS[-place] if place < 0 else number * _FLOAT_TENS[place]
            target[row] = -number if sign else number
        else:
            power = place - LOWEST_POWER
            high, low = powers[power, 0], powers[power, 1]
            inexact = _U(0) if 0 <= place <= _EXACT_POWERS else _U(1)
            upper = _nearest(digits + (_U(1) if more else _U(0)), high, low, place)
            lower = _nearest(digits, high - (inexact if low == _U(0) else _U(0)), low - inexact, place)
            bits[row] = lower | sign
            if lower != upper:
                open_rows[row] = 1
                num_open += 1
    return num_open, -1, -1


@kernel
def _nearest(digits: Any, high: Any, low: Any, place: int) -> Any:
    """The bits of the float64 nearest to digits * 10**place, where (high, low) are 128 bits of that power."""
    exponent = 64 + ((place * 1741647) >> 19)
    while digits >> _U(63) == _U(0):
        digits <<= _U(1)
        exponent -= 1
    bottom = digits * low
    middle = digits * high
    total = middle + upper_half(digits, low)
    top = upper_half(digits, high) + (_U(1) if total < middle else _U(0))
    if top >> _U(63) == _U(0):
        top = (top << _U(1)) | (total >> _U(63))
        total = (total << _U(1)) | (bottom >> _U(63))
        bottom <<= _U(1)
        exponent -= 1
    mantissa, rest = top >> _U(11), top & _U(2047)
    beyond = (total | bottom) != _U(0)
    if rest > _U(1024) or (rest == _U(1024) and (beyond or (mantissa & _U(1)) == _U(1))):
        mantissa += _U(1)
    return (_U(exponent + 1022) << _U(52)) + mantissa


# ---- statistics: runs of keys, and the ranges of digits ----


@kernel
def merge_runs(keys: Array, counts: Array, other_keys: Array, other_counts: Array, to_keys: Array, to_counts: Array) -> int:
    """Merge two runs into arrays that hold both; returns how many keys there are."""
    i, j, size = 0, 0, 0
    while i < len(keys) and j < len(other_keys):
        key, other = keys[i], other_keys[j]
        to_keys[size] = min(key, other)
        to_counts[size] = (counts[i] if key <= other else 0) + (other_counts[j] if other <= key else 0)
        i += key <= other
        j += other <= key
        size += 1
    while i < len(keys):
        to_keys[size], to_counts[size] = keys[i], counts[i]
        i += 1
        size += 1
    while j < len(other_keys):
        to_keys[size], to_counts[size] = other_keys[j], other_counts[j]
        j += 1
        size += 1
    return size


@kernel
def settled_down_to(least: Array, most: Array, top: int) -> int:
    """The place down to which values between the outermost ones can no longer widen the ranges, which begin at place `top`.

    That is so below the leading digit, where digits range from 0 to 9. A range that does not begin at 0 could still widen.
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

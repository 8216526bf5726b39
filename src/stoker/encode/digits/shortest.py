"""Shortest: the digits of any float64, as it is printed: the fewest that read back as the same number, and the nearest of those.

This is Schubfach (R. Giulietti, "The Schubfach way to render doubles"), in whole numbers without a loop. A number that needs
more than 20 decimals is printed as NumPy does with `precision=20`: its exact value, rounded half to even at 1e-20.
Law: digits are those of `np.format_float_positional(abs(x), unique=True, precision=20)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.encode.digits.product import upper_half
from stoker.kernel import kernel

Array = npt.NDArray[Any]

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
    bits: Array,
    pending: Array,
    powers: Array,
    lowest_power: int,
    tens: Array,
    limbs: Array,
    lowest_place: int,
    filled: Array,
    top: int,
    bottom: int,
) -> tuple[int, int]:
    """Place the digits of the values `pending` (as bits) into their limbs.

    `tens` are 10**0 to 10**18, `powers` those of `powers_of_ten`. Returns how many of them have digits outside of the
    places `top` to `bottom`, and the first that is infinite (or -1).
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
        power = -place - lowest_power
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
            unit = tens[min(-_DECIMALS - place, _MOST_DIGITS + 1)]
            cut = digits % unit != _U(0)
            digits = _rounded(mantissa, -exponent - _DECIMALS) if cut else digits // unit
            place = -_DECIMALS

        if place + _MOST_DIGITS > top + 1:  # the leading digit may stand above the window
            num_digits = 1
            while num_digits <= _MOST_DIGITS and digits >= tens[num_digits]:
                num_digits += 1
            cut |= place + num_digits > top + 1
            if place + num_digits > _HIGHEST + 1:  # printed numbers end behind 50 digits, so the leading one stands there
                place = _HIGHEST + 1 - num_digits
        if place < bottom:
            cut |= digits % tens[min(bottom - place, _MOST_DIGITS)] != _U(0)
        num_cut += cut

        limb = (place - lowest_place) >> 3
        unit = tens[(place - lowest_place) & 7]
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

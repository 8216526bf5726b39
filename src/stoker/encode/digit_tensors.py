"""Digits of a tensor on its device, in plain torch operations; gives the same digits as the kernels on the CPU.

All values take the integer path of `kernels.place_shortest`: a GPU gains nothing from a shorter path for most of them.
Unsigned 64-bit numbers are kept as int64 with the same bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from stoker.encode.digit_window import HIGHEST, LOWEST, DigitWindow
from stoker.encode.kernels import LOWEST_POWER, powers_of_ten

Tensor = torch.Tensor
CHUNK = 2**18
"""Rows per step, which bounds the memory beyond the result."""
_HALF_WORD = 0xFFFFFFFF
_SIGN = -(2**63)
_FIVES = 5**20
_MOST_DIGITS = 17


def as_array(values: Tensor) -> np.ndarray:
    """A tensor as a NumPy array, which has no bfloat16."""
    return (values.double() if values.dtype == torch.bfloat16 else values).cpu().numpy()


def split_tensor(values: Tensor, max_decimal: int | None, min_decimal: int | None) -> tuple[Tensor, DigitWindow, int, int | None]:
    """Split a tensor into digits without leaving its device.

    Returns:
        The digits, their places, how many values have digits outside of them, and the row of the first infinite value, if any.
    """
    window = DigitWindow.asked(max_decimal, min_decimal)
    if max_decimal is None or min_decimal is None:
        whole = DigitWindow(HIGHEST, LOWEST)
        used = torch.zeros(whole.num_places, dtype=torch.bool, device=values.device)
        for start in range(0, len(values), CHUNK):
            part = values[start : start + CHUNK]
            matrix = torch.empty(len(part), len(whole.columns), dtype=torch.int8, device=values.device)
            _write(part, whole, matrix)
            used |= (matrix[:, 2:] != 0).any(0)
        places = [place for place, seen in zip(whole.places, used.tolist(), strict=True) if seen]
        window = DigitWindow.derived(places, max_decimal, min_decimal)
    matrix = torch.empty(len(values), len(window.columns), dtype=torch.int8, device=values.device)
    counts = torch.zeros(2, dtype=torch.int64, device=values.device)
    for start in range(0, len(values), CHUNK):
        counts += _write(values[start : start + CHUNK], window, matrix[start : start + CHUNK])
    num_cut, num_infinite = counts.tolist()
    first = int(values.isinf().nonzero()[0]) if num_infinite else None
    return matrix, window, num_cut, first


def _write(values: Tensor, window: DigitWindow, target: Tensor) -> Tensor:
    """Write the rows of a chunk; returns how many of its values have digits outside of the window, and how many are infinite.

    Infinite values get some digits here: to ask for them first would make the host wait for each chunk.
    """
    x = values.double()
    null = x.isnan()
    bits = torch.where(null, 0.0, x.abs()).view(torch.int64)
    digits, place, rounded = _shortest(bits)
    tens = _tens(values.device)
    leading = place + torch.searchsorted(tens, digits, right=True) - 1
    cut = rounded | (leading > window.max_decimal) & (digits > 0)
    place = torch.where(leading > HIGHEST, place - leading + HIGHEST, place)
    below = (window.min_decimal - place).clamp(0, _MOST_DIGITS + 1)
    cut |= digits % tens[below] != 0
    target[:, 0] = null
    target[:, 1] = x < 0
    places = torch.arange(window.max_decimal, window.min_decimal - 1, -1, device=values.device)
    over = places - place[:, None]
    shown = digits[:, None] // tens[over.clamp(0, _MOST_DIGITS + 1)] % 10
    target[:, 2:] = torch.where(over < 0, 0, shown)
    return torch.stack([cut.sum(), x.isinf().sum()])


def _shortest(bits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Digits and place of the shortest decimal that reads as the float64 with these bits, and where it was rounded at 1e-20."""
    biased, fraction = bits >> 52, bits & (2**52 - 1)
    closer = ((fraction == 0) & (biased > 1)).long()
    mantissa = fraction | ((biased > 0).long() << 52)
    exponent = biased.clamp(min=1) - 1075
    place = (exponent * 1262611 - closer * 524031) >> 22
    shift = exponent + ((-place * 1741647) >> 19) + 1
    power = _powers(bits.device)[-place - LOWEST_POWER]
    high, low = power[:, 0], power[:, 1]
    odd, four = mantissa & 1, mantissa << 2
    below = _scaled(high, low, (four - 2 + closer) << shift) + odd
    value = _scaled(high, low, four << shift)
    above = _scaled(high, low, (four + 2) << shift) - odd
    digits = value >> 2
    tenth = digits // 10
    down, up = below <= 40 * tenth, 40 * tenth + 40 <= above
    shorter = (digits >= 10) & (down != up)
    shorter_digits = tenth + up.long()
    down, up = below <= 4 * digits, 4 * digits + 4 <= above
    middle = 4 * digits + 2
    nearest = (value > middle) | ((value == middle) & (digits & 1 == 1))
    digits = torch.where(shorter, shorter_digits, digits + torch.where(down != up, up, nearest).long())
    place = place + shorter.long()
    zero = mantissa == 0
    digits, place = digits.masked_fill(zero, 0), place.masked_fill(zero, 0)
    unit = _tens(digits.device)[(-20 - place).clamp(0, _MOST_DIGITS + 1)]
    rounded = (place < -20) & (digits % unit != 0)
    digits = torch.where(rounded, _rounded(mantissa, (-20 - exponent).clamp(46, 120)), digits // unit)
    return digits, place.clamp(min=-20), rounded


def _rounded(mantissa: Tensor, halvings: Tensor) -> Tensor:
    """mantissa * 5**20 / 2**halvings, rounded half to even; halvings are 46 to 120, and the result is below 2**63."""
    fives = torch.full_like(mantissa, _FIVES)
    low, high = mantissa * fives, _upper_half(mantissa, fives)
    # From 64 halvings on the lower word only says whether there is more.
    far, by = halvings >= 64, halvings % 64
    kept = torch.where(far, high, low)
    mask = (1 << by) - 1
    up = (64 - by).clamp(max=63)
    near_whole = ((low >> by) & ((1 << up) - 1)) | (high << up)
    whole = torch.where(far, high >> by, near_whole)
    rest, half = kept & mask, 1 << (by - 1).clamp(min=0)
    over = (rest > half) | ((rest == half) & (far & (low != 0) | (whole & 1 == 1)))
    # At exactly 64 halvings the lower word is the rest, and its upper bit the half.
    exactly = halvings == 64
    over_exactly = (low < 0) & ((low != _SIGN) | (whole & 1 == 1))
    return whole + torch.where(exactly, over_exactly, over).long()


def _scaled(high: Tensor, low: Tensor, value: Tensor) -> Tensor:
    """The 128-bit number times `value` over 2**128, with the lowest bit set where anything was cut off."""
    middle = high * value
    total = middle + _upper_half(low, value)
    carry = (total ^ _SIGN) < (middle ^ _SIGN)
    return (_upper_half(high, value) + carry.long()) | ((total & -2) != 0).long()


def _upper_half(a: Tensor, b: Tensor) -> Tensor:
    """The upper 64 bits of a product without signs."""
    a_low, a_high = a & _HALF_WORD, (a >> 32) & _HALF_WORD
    b_low, b_high = b & _HALF_WORD, (b >> 32) & _HALF_WORD
    first, second = a_low * b_high, a_high * b_low
    carried = (((a_low * b_low) >> 32) & _HALF_WORD) + (first & _HALF_WORD) + (second & _HALF_WORD)
    return a_high * b_high + ((first >> 32) & _HALF_WORD) + ((second >> 32) & _HALF_WORD) + (carried >> 32)


@cache
def _powers(device: torch.device) -> Tensor:
    return torch.from_numpy(powers_of_ten().view(np.int64).copy()).to(device)


@cache
def _tens(device: torch.device) -> Tensor:
    return 10 ** torch.arange(_MOST_DIGITS + 2, device=device)

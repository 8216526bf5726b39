"""Layout: limbs as columns of digits, in any integer type and order of memory; and what a column's digits range over.

Both take the digits of a limb off its lower end, one place of all rows at a time, which the compiler makes into vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.kernel import kernel

Array = npt.NDArray[Any]

_TEN = np.uint32(10)


@kernel
def write_columns(
    limbs: Array,
    filled: Array,
    null: Array,
    negative: Array,
    num_rows: int,
    places: int,
    lowest_place: int,
    top: int,
    bottom: int,
    target: Array,
    first: int,
) -> None:
    """Write the flags and the digits from place `top` down to `bottom` to target[column, first + row].

    A limb has so many `places`; those of the first begin at `lowest_place`.
    """
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
        low = lowest_place + places * number
        if low > top or low + places <= bottom:
            continue
        limb = limbs[number][:num_rows]
        for i in range(num_rows):
            rest[i] = limb[i]
        for place in range(low, min(low + places, top + 1)):
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
def widen_ranges(
    limbs: Array,
    filled: Array,
    null: Array,
    num_rows: int,
    places: int,
    lowest_place: int,
    top: int,
    bottom: int,
    least: Array,
    most: Array,
) -> None:
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
        low, high = max(lowest_place + places * number, bottom), min(lowest_place + places * (number + 1) - 1, top)
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
        for place in range(lowest_place + places * number, high + 1):
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

"""Product: the upper half of a product of two 64-bit numbers, which kernels cannot say in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

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

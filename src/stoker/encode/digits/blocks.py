"""Blocks: a column goes by as limbs, block by block, and each block is written where its digits belong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from stoker.encode.digits.layout import write_columns
from stoker.encode.digits.limbs import BLOCK, LIMB_PLACES, LOWEST_PLACE, Block
from stoker.encode.digits.numbers import Numbers, infinite_value
from stoker.encode.digits.window import Window


def filled_blocks(numbers: Numbers, window: Window) -> Iterator[tuple[int, Block]]:
    """All rows of a column, as one block that is filled again and again; with the number of its first row."""
    block = Block(window)
    for start, values in numbers.blocks(BLOCK):
        infinite = block.fill(values)
        if infinite >= 0:
            raise infinite_value(numbers.name, start + infinite, float(values[infinite]))
        yield start, block


def write_block(block: Block, target: npt.NDArray[Any], start: int) -> None:
    """Write a block to target[column, start + row], of any integer type."""
    write_columns(
        block.limbs,
        block.filled,
        block.null,
        block.negative,
        block.num_rows,
        LIMB_PLACES,
        LOWEST_PLACE,
        block.window.max_decimal,
        block.window.min_decimal,
        target,
        start,
    )

"""Cells: the memory of a tensor that is filled here and there, and zero elsewhere.

The system hands it out zeroed when it is first touched. In pages of 2 MB that is several times faster than in those of 4 kB,
which is most of the time that large tensors take (benchmarks/bench_sequences.py), so they are asked for.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import SourceTooLarge
from stoker.units import readable_bytes

Array = npt.NDArray[Any]

LARGE_BYTES = 4 << 20
"""From this size on, large pages are asked for: below, little of the memory would lie in one."""


def zeroed(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Array:
    """A flat array of zeros for a tensor of this shape; `name` is that of its column."""
    num_cells = math.prod(shape)
    num_bytes = num_cells * dtype.itemsize
    try:
        if num_bytes < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
            return np.zeros(num_cells, dtype=dtype)
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(memory, dtype=dtype)  # which holds the memory, and gives it back at its end
    except (MemoryError, OSError, OverflowError, ValueError):  # as much as that has several names
        raise SourceTooLarge(
            f"column {name!r} as {dtype} {list(shape)} takes {readable_bytes(num_bytes)}, which there is no memory for. "
            "Lower max_length, pass layout='packed', or make a store with pack_sequences(…)."
        ) from None

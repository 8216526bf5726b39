"""Cells: the memory of all tensors of a call, filled here and there, and zero elsewhere.

The system hands memory out zeroed when it is first touched. In pages of 2 MB that is several times faster than in those of
4 kB, and it is most of the time that sequences take (benchmarks/bench_sequences.py): so all tensors lie in one stretch, for
which large pages are asked for. It is given back when the last of them is gone.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import SourceTooLarge
from stoker.memory import ALIGNMENT
from stoker.units import readable_bytes

Array = npt.NDArray[Any]

LARGE_BYTES = 4 << 20
"""From this size on, large pages are asked for: below, little of the memory would lie in one."""


def zeroed(shape: Sequence[int], types: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    """A flat array of zeros for each column, with as many cells as a tensor of this shape."""
    num_cells = math.prod(shape)
    starts, end = {}, 0
    for name, dtype in types.items():
        starts[name] = end
        end += -(-num_cells * dtype.itemsize // ALIGNMENT) * ALIGNMENT
    try:
        memory = _stretch(end)
    except (MemoryError, OSError, OverflowError, ValueError):  # asking for too much has several names
        raise SourceTooLarge(
            f"{len(types)} columns of shape {list(shape)} take {readable_bytes(end)}, which there is no memory for. "
            "Lower max_length, pass layout='packed', or make a store with pack_sequences(…)."
        ) from None
    return {name: np.ndarray((num_cells,), dtype, memory, starts[name]) for name, dtype in types.items()}


def _stretch(num_bytes: int) -> Any:
    """Memory that lives as long as an array over it."""
    if num_bytes < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(num_bytes, dtype=np.uint8)
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return memory

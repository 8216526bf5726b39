"""Selection of rows on a GPU as one kernel: reads each sample where it lies, writes the batch, pads with zeros in the same pass.

With torch alone the selection and the padding are separate passes over the batch (benchmarks/gpu_feed.py). This module needs
Triton, which comes with the CUDA builds of torch; `is_available` says whether it is there.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch

BLOCK = 2048
_WARPS = 4


@cache
def is_available() -> bool:
    """Whether Triton can be used here."""
    return torch.cuda.is_available() and importlib.util.find_spec("triton") is not None


@cache
def _compiled() -> Any:
    import triton
    import triton.language as tl

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def select(  # type: ignore[no-untyped-def]
        source, starts, counts, place, target, size, width, BLOCK: tl.constexpr, MASKED: tl.constexpr, PLACED: tl.constexpr
    ):
        row = tl.program_id(0).to(tl.int64)
        entry = row
        if PLACED:
            entry = row + tl.load(place)
        number = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = number < size
        wanted = inside
        if MASKED:
            wanted = inside & (number < tl.load(counts + entry) * width)
        values = tl.load(source + tl.load(starts + entry) * width + number, mask=wanted, other=0)
        tl.store(target + row * size + number, values, mask=inside)

    return select


def select_rows(
    source: torch.Tensor,
    starts: torch.Tensor,
    counts: torch.Tensor,
    place: torch.Tensor | None,
    num_rows: int,
    steps: int,
    width: int,
    *,
    masked: bool,
) -> torch.Tensor:
    """Rows of `steps` steps of `width` numbers from the flat `source`: [rows, steps, width], zero behind `counts` steps.

    `starts` and `counts` are read from entry `place` on (from the first without one).
    """
    flat = source.view(torch.uint8) if source.dtype == torch.bool else source
    target = torch.empty(num_rows, steps, width, dtype=flat.dtype, device=source.device)
    size = steps * width
    _compiled()[(num_rows, -(-size // BLOCK))](
        flat, starts, counts, place, target, size, width, BLOCK=BLOCK, MASKED=masked, PLACED=place is not None, num_warps=_WARPS
    )
    return target.view(source.dtype)

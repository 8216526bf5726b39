"""What the kernels rely on."""

from __future__ import annotations

import torch


def test_the_root_of_a_rounded_square_is_the_input() -> None:
    """What the gradient of ReLU squared relies on, for all positive bfloat16 whose square is one."""
    every = torch.arange(0x2000, 0x5F00, dtype=torch.int16).view(torch.bfloat16)
    square = every.float().square().bfloat16()
    assert torch.equal(square.float().sqrt().bfloat16(), every)

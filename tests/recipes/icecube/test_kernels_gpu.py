"""On a GPU: each kernel equals a few lines of plain torch."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.gpu


def draw(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


@pytest.mark.parametrize("rows", [1, 127, 1000])
def test_relu_squared_is_part_of_the_matmul_before_it(rows: int) -> None:
    from stoker_recipes.icecube import kernels

    x, up, down, g = draw(rows, 256), draw(1024, 256), draw(256, 1024), draw(rows, 256)
    squared = kernels.up_squared(x, up)
    hidden = (x.float() @ up.float().t()).bfloat16().float()
    torch.testing.assert_close(squared.float(), hidden.relu().square(), rtol=0.02, atol=0.1)
    expected = (g.float() @ down.float()) * 2 * hidden.relu()
    torch.testing.assert_close(kernels.down_back(g, down, squared).float(), expected, rtol=0.02, atol=2.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_mixed_and_normed(dtype: torch.dtype) -> None:
    from stoker_recipes.icecube import kernels

    x, y, x0 = draw(1001, 256, dtype=dtype), draw(1001, 256), draw(1001, 256, dtype=dtype)
    a, b = torch.tensor(0.9, device="cuda"), torch.tensor(-0.3, device="cuda")
    out, normed, scales = kernels.mix(x, y, x0, a, b, dtype=torch.bfloat16)
    expected = a * (x.float() + y.float()) + b * x0.float()
    torch.testing.assert_close(out.float(), expected, rtol=0.01, atol=0.02)
    torch.testing.assert_close(scales, expected.square().mean(1).rsqrt())
    torch.testing.assert_close(normed.float(), expected * scales[:, None], rtol=0.01, atol=0.01)

"""The Newton-Schulz iteration of Muon, for stacked matrices."""

from __future__ import annotations

import torch

# The coefficients of the quintic iteration of torch.optim.Muon.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
STEPS = 5
EPS = 1e-7


def orthogonalize(matrices: torch.Tensor, *, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Bring all singular values of matrices near 1, all matrices in one call.

    Args:
        matrices: [K, A, B].
        dtype: The type of the iteration. `torch.optim.Muon` has bfloat16, which is slow on a CPU.

    Returns:
        [K, A, B] in `dtype`.

    Example:
        >>> found = orthogonalize(torch.diag(torch.tensor([3.0, 2.0, 1.0]))[None], dtype=torch.float32)
        >>> torch.linalg.svdvals(found).round(decimals=1)
        tensor([[1.1000, 0.7000, 0.7000]])
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(dtype)
    is_tall = matrices.shape[1] > matrices.shape[2]
    if is_tall:
        x = x.mT
    x = x / torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True).clamp(min=EPS)
    for _ in range(STEPS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x

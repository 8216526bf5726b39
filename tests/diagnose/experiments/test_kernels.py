"""Attention does not return its weights, and cuDNN measures; losses stay."""

from __future__ import annotations

import pytest
import torch
from tests.diagnose.experiments.samples import installed
from torch import nn

from stoker.diagnose.experiments.base import Fix
from stoker.diagnose.experiments.kernels import Cudnn, FusedAttention
from stoker.diagnose.experiments.precision import Tf32
from stoker.diagnose.experiments.table import fix_named
from stoker.diagnose.experiments.threads import Threads


def test_sdpa_leaves_out_the_weights_of_attention(request: pytest.FixtureRequest) -> None:
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.randn(2, 5, 8)
    before, weights = attention(x, x, x)
    assert weights is not None
    fix = installed(FusedAttention(), request)
    after, weights = attention(x, x, x)
    assert weights is None
    torch.testing.assert_close(before, after)
    assert fix.used
    fix.used = False
    attention(x, x, x, need_weights=False)
    assert not fix.used


def test_flags_of_torch_are_put_back() -> None:
    before = (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.get_num_threads())
    for fix in (Tf32(), Cudnn(), Threads(before[2] + 1)):
        fix.begin([nn.Conv1d(1, 1, 1)], None)
        assert fix.used
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.get_num_threads()) != before
        fix.remove()
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.benchmark, torch.get_num_threads()) == before


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["tf32", "cudnn"])
def test_fixes_of_a_gpu_keep_the_losses(name: str) -> None:
    def run(fix: Fix | None) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.Flatten(), nn.Linear(48, 1)).cuda()
        if fix is not None:
            fix.begin([model], None)
        stepper = torch.optim.SGD(model.parameters(), lr=1e-2)
        kept = []
        for _ in range(5):
            loss = model(torch.randn(16, 4, 8, device="cuda")).square().mean()
            stepper.zero_grad()
            loss.backward()
            stepper.step()
            kept.append(loss.item())
        return kept

    before, precision = run(None), torch.get_float32_matmul_precision()
    fix = fix_named(name)()
    try:
        assert run(fix) == pytest.approx(before, rel=fix.tolerance)
        assert fix.used
    finally:
        fix.remove()
    assert torch.get_float32_matmul_precision() == precision
    assert run(None) == before

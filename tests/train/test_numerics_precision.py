"""Precision: what a device can do, the flags of matmuls, and the loss scale of fp16."""

from __future__ import annotations

import pytest
import torch

from stoker.errors import OptionError
from stoker.train.numerics import FIRST_SCALE, GROWTH_STEPS, Scale, autocast, check_precision, kept_matmul_flags, set_matmul_flags

CPU = torch.device("cpu")


@pytest.mark.parametrize("precision", ["tf32", "fp16"])
def test_what_only_a_gpu_can_do_is_refused_elsewhere(precision: str) -> None:
    with pytest.raises(OptionError, match=rf"precision '{precision}' needs a GPU, but the model is on cpu. Use 'fp32' or 'bf16'."):
        check_precision(precision, CPU)
    check_precision(precision, torch.device("cuda"))


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_matmuls_of_a_forward_pass_have_the_precision(precision: str, dtype: torch.dtype) -> None:
    x = torch.ones(2, 2)
    with autocast(precision, CPU):  # type: ignore[arg-type]
        assert (x @ x).dtype == dtype


def test_flags_of_matmuls_are_put_back() -> None:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    with kept_matmul_flags():
        set_matmul_flags("tf32")
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == ("high", True)
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


def test_the_loss_scale_is_halved_at_an_overflow_and_doubled_after_many_good_steps() -> None:
    scale, fine = Scale(CPU), torch.zeros(())
    scale.update(torch.ones(()))
    assert float(scale.value) == FIRST_SCALE / 2
    for _ in range(GROWTH_STEPS - 1):
        scale.update(fine)
    assert float(scale.value) == FIRST_SCALE / 2
    resumed = Scale(CPU)
    resumed.load_state_dict(scale.state_dict())
    for one in (scale, resumed):
        one.update(fine)
        assert float(one.value) == FIRST_SCALE, "the steps before count after a resume"

"""Tensors give the digits that arrays give, and come back as tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from stoker_recipes.tabular import join_digits, split_digits

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_is_widened_to_float64(dtype: torch.dtype) -> None:
    values = torch.arange(-100, 100, dtype=torch.float64).mul(1.37).to(dtype)[::3]
    digits, expected = split_digits(values), split_digits(values.double().numpy())
    assert (digits.window, digits.num_cut) == (expected.window, expected.num_cut)
    np.testing.assert_array_equal(digits.matrix, expected.matrix)


def test_tensors_come_back_as_tensors() -> None:
    values = torch.tensor([19.99, -3.0, float("nan")], dtype=torch.float64, requires_grad=True)
    digits = split_digits(values)
    assert isinstance(digits.matrix, torch.Tensor)
    joined = join_digits(digits)
    assert isinstance(joined, torch.Tensor)
    torch.testing.assert_close(joined, values.detach(), equal_nan=True, rtol=0, atol=0)


@pytest.mark.gpu
def test_digits_of_a_gpu_are_there() -> None:
    values = torch.tensor([19.99, -3.0], dtype=torch.float64, device="cuda")
    digits = split_digits(values)
    assert digits.matrix.is_cuda  # type: ignore[union-attr]
    assert join_digits(digits).equal(values)

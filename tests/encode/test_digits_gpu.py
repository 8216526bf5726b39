"""Digits on a GPU are those of the CPU, bit for bit, and stay there. Skipped where there is no GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.encode.digits_twin import WINDOWS, hard_numbers, mixed_numbers, money

from stoker.encode import join_digits, split_digits
from stoker.encode.digit_tensors import CHUNK
from stoker.errors import BadValueError

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("bounds", [*WINDOWS, (None, None), (None, -2)], ids=str)
def test_digits_are_those_of_the_cpu(rng: np.random.Generator, bounds: Any) -> None:
    values = np.concatenate([hard_numbers(), mixed_numbers(rng, 2 * CHUNK + 3)])
    expected = split_digits(values, max_decimal=bounds[0], min_decimal=bounds[1])
    found = split_digits(torch.from_numpy(values).cuda(), max_decimal=bounds[0], min_decimal=bounds[1])
    assert found.matrix.is_cuda  # type: ignore[union-attr]
    assert (found.window, found.num_cut) == (expected.window, expected.num_cut)
    np.testing.assert_array_equal(found.matrix.cpu().numpy(), expected.matrix)  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8], ids=str)
def test_every_type_is_widened_to_float64(dtype: torch.dtype) -> None:
    values = torch.arange(-1000, 1000, dtype=torch.float64).mul(7919.37).to(torch.float32).clamp(0, 255).to(dtype)
    np.testing.assert_array_equal(split_digits(values.cuda()).matrix.cpu().numpy(), split_digits(values.double().numpy()).matrix)


def test_they_join_on_their_device_to_what_they_were(rng: np.random.Generator) -> None:
    values = torch.from_numpy(money(rng, 10_000)).cuda()
    joined = join_digits(split_digits(values))
    assert joined.is_cuda
    assert joined.equal(values)


def test_infinite_values_are_named() -> None:
    with pytest.raises(BadValueError, match=r"column 'price' holds inf \(float\) in row 2, which has no digits"):
        split_digits(torch.tensor([1.0, float("inf")]).cuda(), name="price")


def test_memory_beyond_the_result_does_not_grow_with_the_column() -> None:
    def beyond(rows: int) -> int:
        values = torch.arange(rows, dtype=torch.float64, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        digits = split_digits(values)
        return torch.cuda.max_memory_allocated() - before - digits.matrix.nbytes  # type: ignore[union-attr]

    assert beyond(8 * CHUNK) < 1.1 * beyond(2 * CHUNK) + 8 * CHUNK

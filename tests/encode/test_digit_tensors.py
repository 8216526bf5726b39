"""Tensors give the digits that arrays give: by the operations of a device, here on the CPU, and by the CPU's own way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.encode.digits_twin import WINDOWS, hard_numbers, mixed_numbers, printed_digits

from stoker.encode import digit_tensors as digits_tensor
from stoker.encode import join_digits, split_digits
from stoker.encode.digits import split_on_device
from stoker.errors import BadValueError, OptionError


def assert_same(found: Any, expected: Any) -> None:
    assert found.matrix.dtype == torch.int8
    assert found.window == expected.window
    assert found.num_cut == expected.num_cut
    np.testing.assert_array_equal(found.matrix.cpu().numpy(), expected.matrix)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_the_operations_of_a_device_give_the_printed_digits(rng: np.random.Generator, window: tuple[int, int]) -> None:
    values = np.concatenate([hard_numbers(), mixed_numbers(rng, 5000)])
    found = split_on_device(torch.from_numpy(values), *window, None)
    assert_same(found, split_digits(values, max_decimal=window[0], min_decimal=window[1]))
    np.testing.assert_array_equal(found.matrix.numpy(), printed_digits(values, *window))


@pytest.mark.parametrize("bounds", [(None, None), (None, -3), (4, None), (18, -8)])
def test_chunks_do_not_show(rng: np.random.Generator, bounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits_tensor, "CHUNK", 7)
    values = np.round(rng.normal(size=100) * 1000, 3)
    found = split_on_device(torch.from_numpy(values), *bounds, None)
    assert_same(found, split_digits(values, max_decimal=bounds[0], min_decimal=bounds[1]))


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.uint8]


@pytest.mark.parametrize("split", [lambda x: split_on_device(x, 18, -8, None), split_digits], ids=["device", "cpu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_is_widened_to_float64(dtype: torch.dtype, split: Any) -> None:
    values = torch.arange(-100, 100, dtype=torch.float64).mul(1.37).to(dtype)
    assert_same(split(values), split_digits(values.double().numpy()))


@pytest.mark.parametrize("split", [lambda x: split_on_device(x, 18, -8, "price"), lambda x: split_digits(x, name="price")])
def test_infinite_values_are_named(split: Any) -> None:
    with pytest.raises(BadValueError, match=r"column 'price' holds -inf \(float\) in row 3, which has no digits"):
        split(torch.tensor([1.0, float("nan"), -float("inf"), float("inf")]))


def test_tensors_come_back_as_tensors() -> None:
    values = torch.tensor([19.99, -3.0, float("nan")], dtype=torch.float64, requires_grad=True)
    digits = split_digits(values)
    assert isinstance(digits.matrix, torch.Tensor)
    joined = join_digits(digits)
    assert isinstance(joined, torch.Tensor)
    torch.testing.assert_close(joined, values.detach(), equal_nan=True, rtol=0, atol=0)


def test_views_and_empty_tensors_split() -> None:
    values = torch.arange(20.0)[::3]
    assert_same(split_on_device(values, 18, -8, None), split_digits(values.numpy()))
    assert_same(split_on_device(values[:0], None, None, None), split_digits(values[:0].numpy(), max_decimal=None, min_decimal=None))


def test_a_frame_of_a_tensor_is_that_of_its_values() -> None:
    frame = split_digits(torch.tensor([1.5]), frame=True)
    assert frame["E0"].tolist() == [1]
    assert frame.equals(split_digits(torch.tensor([1.5], dtype=torch.bfloat16), frame=True))


@pytest.mark.parametrize("values", [torch.zeros(2, 2), torch.tensor(1.0)])
def test_a_tensor_is_one_column(values: torch.Tensor) -> None:
    with pytest.raises(OptionError, match="expected one column of numbers"):
        split_digits(values)


@pytest.mark.parametrize("values", [torch.tensor([True]), torch.tensor([1j])])
def test_a_tensor_holds_numbers(values: torch.Tensor) -> None:
    with pytest.raises(BadValueError, match=r"the column holds .* in row 1"):
        split_digits(values)

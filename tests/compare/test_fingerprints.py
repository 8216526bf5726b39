"""Fingerprints: what changes them, what does not, and that they draw no random number."""

from __future__ import annotations

import pytest
import torch

from stoker.compare.fingerprints import MAX_COLUMNS, perturb, row_fingerprints, whole_fingerprint


def rows(*tensors: torch.Tensor, rounded: bool = False) -> list[int]:
    values: list[int] = row_fingerprints(tensors, rounded=rounded).tolist()
    return values


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]
)
def test_a_sample_has_the_same_fingerprint_in_every_batch(dtype: torch.dtype) -> None:
    x = (torch.rand(100, 5, 3) * 200).to(dtype) if dtype != torch.bool else torch.rand(100, 40) > 0.5
    order = torch.randperm(100)
    assert rows(x[order]) == [rows(x)[place] for place in order]
    assert rows(x[:7]) == rows(x)[:7]
    assert len(set(rows(x))) == 100


def test_each_value_and_its_place_count() -> None:
    x = torch.arange(12.0).reshape(2, 6)
    y = x.clone()
    y[0, 5] += 1e-6
    assert rows(x)[0] != rows(y)[0]
    assert rows(x)[1] == rows(y)[1]
    assert rows(x) != rows(x.flip(1))
    assert rows(x, x + 1) != rows(x + 1, x)


def test_rounding_moves_few_rounded_fingerprints() -> None:
    x = torch.randn(1000, 8)
    near = x * (1 + 1e-7)
    assert rows(x) != rows(near)
    same = sum(a == b for a, b in zip(rows(x, rounded=True), rows(near, rounded=True), strict=True))
    assert same >= 990
    far = sum(a == b for a, b in zip(rows(x, rounded=True), rows(x * 1.05, rounded=True), strict=True))
    assert far == 0


def test_of_large_samples_some_values_are_read() -> None:
    x = torch.zeros(2, 10 * MAX_COLUMNS)
    y = x.clone()
    y[0] += 1
    assert rows(x)[0] != rows(y)[0]


def test_no_random_number_is_drawn() -> None:
    state = torch.get_rng_state()
    weight = torch.nn.Parameter(torch.randn(4, 4))
    after = torch.get_rng_state()
    row_fingerprints([weight.detach()], rounded=True)
    whole_fingerprint(weight.detach())
    with torch.no_grad():
        perturb(weight, 2.0**-23)
    assert torch.equal(torch.get_rng_state(), after)
    assert not torch.equal(state, after), "negative control: drawing changes the state"


@pytest.mark.parametrize(("dtype", "epsilon"), [(torch.float32, 2.0**-23), (torch.float32, 2.0**-8), (torch.bfloat16, 2.0**-23)])
def test_a_perturbed_weight_differs_by_one_rounding_error(dtype: torch.dtype, epsilon: float) -> None:
    weight = torch.randn(1000, dtype=torch.float64).to(dtype)
    before = weight.clone()
    perturb(weight, epsilon)
    size = ((weight.double() - before.double()) / before.double()).abs()
    expected = max(epsilon, torch.finfo(dtype).eps)
    assert 0 < float(size.median()) <= 2 * expected
    assert float(size.max()) <= 3 * expected
    perturb(torch.zeros(0), epsilon)
    perturb(torch.zeros(3, dtype=torch.int64), epsilon)


def test_the_fingerprint_of_a_tensor_holds_all_its_values() -> None:
    x = torch.randn(6, 5)
    shapes = (x, x[0], x[0, 0], x.T, torch.zeros(0, 3))
    assert len({int(whole_fingerprint(value)) for value in shapes}) == len(shapes)
    assert int(whole_fingerprint(x)) == int(whole_fingerprint(x.clone()))
    assert int(whole_fingerprint(x)) != int(whole_fingerprint(x.flip(0)))

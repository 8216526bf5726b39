"""Random numbers go on as if nothing had happened, through JSON and back."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from stoker.errors import CheckpointInvalidError
from stoker.train import state_dict as rngs
from stoker.train.state_dict import flatten, unflatten


def draw() -> list[Any]:
    """Some numbers of every generator; an odd count of normal ones, of which a generator may keep a second half."""
    numbers = [random.random(), random.gauss(0, 1), random.getrandbits(70)]
    numbers += [float(np.random.rand()), float(np.random.normal()), int(np.random.randint(1 << 30))]
    numbers += [torch.rand(3).tolist(), torch.randn(17).tolist(), torch.randperm(20).tolist()]
    if torch.cuda.is_available():
        numbers += [torch.rand(3, device="cuda").tolist(), torch.randn(1001, device="cuda").tolist()]
    return numbers


def through_json(state: dict[str, Any]) -> Any:
    tensors, skeleton = flatten(state)
    assert not tensors, "all of it is text, so it needs no file of its own"
    return unflatten({}, msgspec.json.decode(msgspec.json.encode(skeleton)))


@pytest.mark.parametrize("burn", [0, 1, 7])
def test_restored_generators_continue_with_the_same_numbers(burn: int) -> None:
    for _ in range(burn):
        draw()
    state = through_json(rngs.capture())
    expected = draw()
    assert draw() != expected
    rngs.restore(state)
    assert draw() == expected


@pytest.mark.parametrize("name", ["PCG64", "Philox", "SFC64", "PCG64DXSM"])
def test_another_bit_generator_of_numpy_is_captured_too(name: str) -> None:
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(getattr(np.random, name)(7))
        state = through_json(rngs.capture())
        expected = np.random.rand(5).tolist()
        np.random.rand(3)
        rngs.restore(state)
        assert np.random.rand(5).tolist() == expected
    finally:
        np.random.set_bit_generator(before)


def test_capturing_changes_no_generator() -> None:
    state = rngs.capture()
    assert rngs.capture() == state


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("torch", b"short"),
        ("torch", None),
        ("numpy", {"bit_generator": "PCG65"}),
        ("numpy", 3),
        ("python", {"version": 3, "numbers": b"1234", "gauss": None}),
        ("python", {"version": 9, "numbers": b"1234", "gauss": None}),
        ("cuda", 7),
    ],
)
def test_a_state_that_fits_no_generator_is_refused_and_changes_nothing(field: str, value: Any) -> None:
    state = rngs.capture()
    draw()
    before = rngs.capture()
    with pytest.raises(CheckpointInvalidError, match="random numbers cannot be put back"):
        rngs.restore({**state, field: value})
    assert rngs.capture() == before


@pytest.mark.parametrize("left_out", ["python", "numpy", "torch"])
def test_negative_control_a_generator_that_is_left_out_gives_other_numbers(left_out: str) -> None:
    state = rngs.capture()
    expected = draw()
    draw()
    rngs.restore({**state, left_out: rngs.capture()[left_out]})
    assert draw() != expected


def test_the_random_numbers_of_a_batch_follow_from_its_number() -> None:
    """Of every global generator, and different for each seed, update and batch."""

    def drawn(*numbers: int) -> tuple[float, float, float]:
        rngs.seed_batch(*numbers)
        return float(torch.rand(())), float(np.random.rand()), random.random()

    assert drawn(1, 2, 3) == drawn(1, 2, 3)
    found = [drawn(*numbers) for numbers in ((1, 2, 3), (0, 2, 3), (1, 0, 3), (1, 2, 0), (12, 3, 0))]
    for values in zip(*found, strict=True):
        assert len(set(values)) == len(found)

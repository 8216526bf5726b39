"""The content of a batch is all of it, bit for bit."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from stoker.testing import content_of, difference, samples_of

Pair = namedtuple("Pair", "x y")


@dataclass
class Record:
    x: Any


BATCHES = [
    torch.zeros(3),
    torch.zeros(3, dtype=torch.bfloat16),
    torch.zeros(3, dtype=torch.bool),
    torch.zeros(()),
    torch.zeros(0, 4),
    np.zeros((3, 2), dtype="<u2"),
    np.array(["a", None, 3], dtype=object),
    (torch.zeros(2), {"a": np.ones(2), "b": [torch.ones(1), "text"]}),
    Pair(torch.zeros(2), 1),
    Record(torch.zeros(2)),
    ["a", "b"],
    [0.5, None],
    {"empty": [], "none": None},
]


@pytest.mark.parametrize("batch", BATCHES, ids=lambda batch: str(batch).replace("\n", " ")[:40])
def test_a_batch_equals_itself(batch: Any) -> None:
    assert difference(content_of(batch), content_of(batch)) is None


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        ({"x": torch.zeros(2)}, {"y": torch.zeros(2)}, "has the entries x; expected y"),
        ({"x": torch.zeros(2)}, {"x": torch.zeros(2), "y": 0}, "has the entries x; expected x, y"),
        (torch.zeros(2), torch.zeros(3), r"has batch as float32[2]; expected float32[3]"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64), "has batch as float32[2]; expected float64[2]"),
        (torch.tensor([0.0, -0.0]), torch.tensor([0.0, 0.0]), "differs in batch, row 1"),
        ({"x": (1, torch.zeros(1))}, {"x": (1, torch.ones(1))}, "differs in x.1, row 0"),
        ({"x": 1.0}, {"x": 1.5}, "differs in x"),
        (["a", "b"], ["a", "c"], "differs in batch, row 1"),
        (torch.zeros(2, dtype=torch.bfloat16), torch.tensor([0, 1], dtype=torch.bfloat16), "differs in batch, row 1"),
    ],
)
def test_the_first_difference_is_named(one: Any, other: Any, message: str) -> None:
    assert difference(content_of(one), content_of(other)) == message


def test_nan_equals_nan_bit_for_bit() -> None:
    nan = torch.tensor([float("nan")])
    assert difference(content_of(nan), content_of(nan.clone())) is None


def test_content_is_a_copy() -> None:
    batch = torch.zeros(2)
    content = content_of(batch)
    batch += 1
    assert difference(content, content_of(torch.zeros(2))) is None


def test_samples_are_rows_without_the_masked_ones() -> None:
    batch = {"x": torch.tensor([[1, 2], [3, 0], [0, 0]]), "valid": torch.tensor([True, True, False])}
    narrow = {"x": torch.tensor([[3], [9]]), "valid": torch.tensor([True, True])}
    assert len(samples_of(batch, None)) == 2
    assert samples_of(batch, None)[1] == samples_of(narrow, None)[0]

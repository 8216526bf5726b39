"""Batches of any shape are looked at as rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from tests.audit.samples import NUM, batches_of, of

from stoker import audit


class Point(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


@dataclasses.dataclass
class Record:
    x: torch.Tensor
    y: torch.Tensor


def packed(x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
    lengths = (torch.arange(len(x)) % 5) + 1
    steps = torch.cat([row[:length] for row, length in zip(x, lengths, strict=True)])
    return {"x": steps, "cu_seqlens": torch.cat([torch.zeros(1), lengths.cumsum(0)]).int(), "y": y}


SHAPES: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], Any], set[str]]] = {
    "tensor": (lambda x, y: x, {"batch"}),
    "tuple": (lambda x, y: (x, y), {"[0]", "[1]"}),
    "dict": (lambda x, y: {"x": x, "y": y}, {"x", "y"}),
    "nested": (lambda x, y: ({"in": {"x": x}}, [y, y + 1]), {"[0].in.x", "[1][0]", "[1][1]"}),
    "named tuple": (Point, {"x", "y"}),
    "dataclass": (Record, {"x", "y"}),
    "numpy": (lambda x, y: {"x": x.numpy(), "y": y.numpy()}, {"x", "y"}),
    "big-endian": (lambda x, y: {"x": x.numpy().astype(">f4"), "y": y.numpy()}, {"x", "y"}),
    "bfloat16": (lambda x, y: (x.bfloat16(), y), {"[0]", "[1]"}),
    "gradient": (lambda x, y: (x.clone().requires_grad_(), y), {"[0]", "[1]"}),
    "strides": (lambda x, y: (x.transpose(1, 2), y), {"[0]", "[1]"}),
    "texts": (lambda x, y: {"text": [f"{row.sum():.9f}" for row in x], "y": y.tolist()}, {"text", "y"}),
    "list of samples": (lambda x, y: [{"x": a, "y": int(b)} for a, b in zip(x, y, strict=True)], {"x", "y"}),
    "ragged list": (lambda x, y: {"x": [row[: i % 5 + 1] for i, row in enumerate(x)], "y": y}, {"x[:]", "y"}),
    "list of columns": (lambda x, y: {"x": list(x.flatten(1).repeat(1, 2).T), "y": y}, {"x[:]", "y"}),
    "packed": (packed, {"x", "y"}),
    "with others": (lambda x, y: {"x": x, "y": y, "scale": 2.0, "t": torch.arange(3), "no": None}, {"x", "y"}),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_batches_of_any_shape(shape: str) -> None:
    make, entries = SHAPES[shape]
    clean = audit((make(*batch) for batch in batches_of(range(NUM))), reference=(make(*batch) for batch in batches_of(range(NUM))))
    assert set(clean.entries) == entries
    assert clean.ok
    again = [*range(NUM), *range(32)]
    bad = audit((make(*batch) for batch in batches_of(again)), reference=(make(*batch) for batch in batches_of(range(NUM))))
    assert of(bad, "seen twice").severity == "fault"
    assert of(bad, "seen twice").count == 32
    assert of(bad, "foreign rows").severity == "passed"


@pytest.mark.parametrize("shape", ["tensor", "tuple", "dict", "nested", "packed"])
def test_a_changed_row_is_foreign_in_any_shape(shape: str) -> None:
    def spoilt() -> Iterator[Any]:
        for i, (x, y) in enumerate(batches_of(range(NUM))):
            if i == 3:
                x[5, 0] += 1
            yield SHAPES[shape][0](x, y)

    found = audit(spoilt, reference=(SHAPES[shape][0](*batch) for batch in batches_of(range(NUM))))
    assert of(found, "foreign rows").count == 1
    assert "batch 3 row 5" in of(found, "foreign rows").text
    assert of(found, "never seen").count == 1

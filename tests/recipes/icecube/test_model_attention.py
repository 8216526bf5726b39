"""Packed rows: where they come from, and attention that stays within events."""

from __future__ import annotations

import math

import pytest
import torch
from tests.recipes.icecube.plain_model import rms
from torch import Tensor

from stoker_recipes.icecube.model import attend

LENGTHS = [5, 1, 40, 17, 1, 33, 16, 130]


def one_event(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    q, k, v = (x.view(len(x), heads, -1).transpose(0, 1) for x in (q, k, v))
    weights = (rms(q) @ rms(k).mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights @ v).transpose(0, 1).flatten(1)


@pytest.mark.promise("P29")
@pytest.mark.parametrize("only_cls", [False, True])
def test_attention_equals_that_of_one_event_at_a_time(only_cls: bool) -> None:
    offsets = torch.tensor([0, *LENGTHS]).cumsum(0).int()
    q, k, v = (torch.randn(int(offsets[-1]) + 9, 32, dtype=torch.float64) for _ in range(3))
    bounds = list(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))
    rows = [slice(begin, begin + 1 if only_cls else end) for begin, end in bounds]
    expected = torch.cat([one_event(q[row], k[a:b], v[a:b], 2) for row, (a, b) in zip(rows, bounds, strict=True)])
    found = attend(q[offsets[:-1].long()] if only_cls else q, k, v, offsets, 2)
    torch.testing.assert_close(found[: len(expected)], expected)
    assert not found[len(expected) :].any()


def test_negative_control_keys_of_other_events_would_be_seen() -> None:
    offsets = torch.tensor([0, 3, 8], dtype=torch.int32)
    q, k, v = (torch.randn(8, 32, dtype=torch.float64) for _ in range(3))
    together = attend(q, k, v, torch.tensor([0, 8], dtype=torch.int32), 2)
    assert not torch.allclose(together, attend(q, k, v, offsets, 2))

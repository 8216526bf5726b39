"""Batches are pinned once, and copied without a wait."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stoker.diagnose.experiments import pinned as module
from stoker.diagnose.experiments.pinned import Pinned, unblocked


def test_batches_are_pinned_once_where_they_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    fix, batch = Pinned(), (torch.ones(2), torch.ones(2))
    first = fix.batch(batch)
    assert fix.used
    assert first is not batch
    assert fix.batch(batch) is first
    assert fix.batch((torch.ones(2), torch.ones(2))) is not first
    monkeypatch.setattr(module, "MAX_PINNED_BYTES", 0)
    other = (torch.ones(2),)
    assert fix.batch(other) is not fix.batch(other)


def test_copies_from_pinned_memory_alone_are_not_waited_for() -> None:
    class Fake:
        device = torch.device("cpu")

        def __init__(self, pinned: bool) -> None:
            self.is_pinned = lambda: pinned

    def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return kwargs

    copied = unblocked(copy)
    assert copied(Fake(True), "cuda") == {"non_blocking": True}
    assert copied(Fake(True), "cuda", non_blocking=False) == {"non_blocking": False}
    assert copied(Fake(False), "cuda") == {}

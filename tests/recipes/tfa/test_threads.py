"""The number of threads is what was measured to be fastest, and is given back."""

from __future__ import annotations

import pytest
import torch

from stoker.recipes.tfa import threads


@pytest.mark.parametrize(("slow", "expected"), [(1, 2), (2, 1)])
def test_what_is_faster_is_taken(slow: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0

    def step() -> None:
        nonlocal now
        now += 10 if torch.get_num_threads() == slow else 1

    monkeypatch.setattr(threads, "now_ns", lambda: now)
    with threads.using(2):
        assert threads.fastest_threads(step) == expected
        assert torch.get_num_threads() == 2


def test_one_thread_needs_no_measurement() -> None:
    with threads.using(1):
        assert threads.fastest_threads(lambda: pytest.fail("measured")) == 1

"""Stretches: what can be told of them without running a program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stoker.diagnose.steps import TRUE, Steps, Training
from stoker.diagnose.stretches import other_threads


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("given", [1, 2, 8])
def test_numbers_of_threads_are_tried_from_whatever_the_program_has(given: int) -> None:
    """The first one that is tried need not be the program's own."""
    training = Training()
    training.ledger.cores = 2
    torch.set_num_threads(given)
    plan = other_threads(Steps(training))
    assert next(plan) == TRUE
    assert torch.get_num_threads() == 1
    plan.close()
    assert torch.get_num_threads() == given

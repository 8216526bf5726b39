"""Measurement windows, without running a program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from stoker.diagnose.session import REAL, Session
from stoker.diagnose.windows import other_threads


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("given", [1, 2, 8])
def test_numbers_of_threads_are_tried_from_whatever_the_program_has(given: int) -> None:
    """The first one that is tried need not be the program's own."""
    session = Session(on_done=lambda: None)
    session.recorder.cores = 2
    torch.set_num_threads(given)
    plan = other_threads(session)
    assert next(plan) == REAL
    assert torch.get_num_threads() == 1
    plan.close()
    assert torch.get_num_threads() == given

"""The number of threads is that of the fix, also where the program has set its own."""

from __future__ import annotations

import torch

from stoker.diagnose.experiments.threads import Threads


def test_threads_are_set_after_the_program_has_set_its_own() -> None:
    given = torch.get_num_threads()
    try:
        Threads(given + 1).begin([], None)
        assert torch.get_num_threads() == given + 1
    finally:
        torch.set_num_threads(given)

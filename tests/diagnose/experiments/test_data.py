"""Batches that a fix has made are kept where they come again."""

from __future__ import annotations

import pytest
import torch

from stoker.diagnose.experiments.data import KeptBatches


@pytest.mark.parametrize(("most", "num_made"), [(1 << 30, 2), (0, 3)])
def test_what_is_made_of_a_batch_is_kept_as_long_as_there_is_room(
    most: int, num_made: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KeptBatches, "MAX_BYTES", most)
    kept, made = KeptBatches(), []

    def make(batch: torch.Tensor) -> torch.Tensor:
        made.append(batch)
        return batch + 1

    batch = torch.ones(2)
    assert [kept.get(make, value).sum() for value in (batch, batch, torch.ones(2))] == [4, 4, 4]
    assert len(made) == num_made

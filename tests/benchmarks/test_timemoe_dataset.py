"""The Time-MoE chain: windows, padding and masks as published, from folders whose sequences span files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset
from benchmarks.timemoe_folder import walks, write_folder


@pytest.mark.parametrize(
    ("num_points", "windows", "targets"),
    [(1, 0, 0), (2, 1, 1), (2047, 1, 2046), (2048, 1, 2047), (2049, 1, 2048), (4096, 1, 2048), (6144, 2, 4096), (6145, 3, 6144)],
)
def test_the_number_of_windows_and_of_targets(tmp_path: Path, num_points: int, windows: int, targets: int) -> None:
    dataset = TimeMoEWindowDataset(TimeMoEDataset(write_folder(tmp_path / "data", walks([num_points]))), 2048)
    assert len(dataset) == windows
    assert sum(int(sample["loss_masks"].sum()) for sample in dataset) == targets


def test_normalisation_is_that_of_the_whole_sequence(tmp_path: Path) -> None:
    sequence = walks([100])[0]
    folder = write_folder(tmp_path / "data", [sequence])
    centred = TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), 10, stride=30)[2]["input_ids"]
    assert np.array_equal(centred, ((sequence - sequence.mean()) / sequence.std())[60:70])
    scaled = TimeMoEWindowDataset(TimeMoEDataset(folder, "max"), 10, stride=30)[2]["input_ids"]
    assert np.array_equal(scaled, (sequence / np.abs(sequence).max())[60:70])

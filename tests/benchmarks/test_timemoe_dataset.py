"""The Time-MoE chain: windows, padding and masks as published, from folders whose sequences span files."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset
from benchmarks.time_moe.folder import walks, write_folder


@pytest.mark.parametrize(
    ("num_points", "windows", "targets"),
    [(1, 0, 0), (2, 1, 1), (2047, 1, 2046), (2048, 1, 2047), (2049, 1, 2048), (4096, 1, 2048), (6144, 2, 4096), (6145, 3, 6144)],
)
def test_the_number_of_windows_and_of_targets(tmp_path: Path, num_points: int, windows: int, targets: int) -> None:
    dataset = TimeMoEWindowDataset(TimeMoEDataset(write_folder(tmp_path / "data", walks([num_points]))), 2048)
    assert len(dataset) == windows
    assert sum(int(sample["loss_masks"].sum()) for sample in dataset) == targets

"""Time-MoE's data set as its authors read it. It is part of the package, as `stoker bench time-moe` measures it too."""

from __future__ import annotations

from stoker.recipes.time_moe.before.dataset import (
    BinaryDataset,
    GeneralDataset,
    TimeMoEDataset,
    TimeMoEWindowDataset,
    collate,
    max_scaler,
    zero_scaler,
)

__all__ = ["BinaryDataset", "GeneralDataset", "TimeMoEDataset", "TimeMoEWindowDataset", "collate", "max_scaler", "zero_scaler"]

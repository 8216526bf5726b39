"""Grouping rows into series as people do it today: read all files with pandas, group, save one array a column.

Kept as it is run: files in sorted order, pandas' C reader, `groupby` on the key, values and offsets saved with NumPy.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd


def group(paths: list[Path], target: Path, key: str) -> None:
    """Read everything, sort by key (stable), save columns and offsets."""
    read = pd.read_parquet if paths[0].suffix == ".parquet" else pd.read_csv
    table = pd.concat([read(path) for path in paths], ignore_index=True)
    groups = table.groupby(key, sort=True)
    target.mkdir()
    np.save(target / "offsets.npy", np.concatenate([[0], groups.size().to_numpy().cumsum()]))
    table = table.iloc[table[key].argsort(kind="stable")]
    for name in table.columns:
        if name != key:
            np.save(target / f"{name}.npy", table[name].to_numpy())


if __name__ == "__main__":
    group(sorted(Path(sys.argv[1]).iterdir()), Path(sys.argv[2]), sys.argv[3])

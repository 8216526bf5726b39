"""Series like those of electricity transformers, made here: daily and weekly waves, trends and noise, one level each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

NAMES = ("HUFL", "HULL", "MUFL", "OT")


def make_waves(num_points: int, *, seed: int = 0, noise: float = 0.1) -> dict[str, npt.NDArray[Any]]:
    """A column for each name."""
    rng = np.random.default_rng(seed)
    hours = np.arange(num_points)
    columns = {}
    for number, name in enumerate(NAMES):
        day = np.sin(2 * np.pi * (hours + 3 * number) / 24)
        week = 0.5 * np.sin(2 * np.pi * hours / 168 + number)
        columns[name] = 10.0 * (number + 1) + 3.0 * (day + week + noise * rng.normal(size=num_points))
    return columns


def write_csv(path: Path, num_points: int = 600, *, seed: int = 0) -> Path:
    """A table with a date and a column each."""
    columns = make_waves(num_points, seed=seed)
    dates = np.datetime64("2016-07-01T00") + np.arange(num_points).astype("m8[h]")
    rows = zip(dates.astype(str), *(column.tolist() for column in columns.values()), strict=True)
    text = "".join(",".join([date.replace("T", " ") + ":00:00", *map(repr, numbers)]) + "\n" for date, *numbers in rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("date," + ",".join(columns) + "\n" + text)
    return path

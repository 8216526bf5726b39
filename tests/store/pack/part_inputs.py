"""Inputs of packs in parts, and what the tests compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stoker.errors import PartsMissingError
from stoker.store.pack import parts, shared_plan
from stoker.store.pack.api import join_parts, pack_part

ROWS = 400
"""Of each file."""


def small_tasks(patch: pytest.MonkeyPatch | None = None) -> None:
    """Cut small inputs into many tasks and ranges; without a patch for good, in a process of its own."""
    for module, name, value in ((shared_plan, "MIN_TASK_BYTES", 2000), (parts, "MIN_RANGE_BYTES", 1500)):
        if patch is None:
            setattr(module, name, value)
        else:
            patch.setattr(module, name, value)


def write_events(folder: Path, *, files: int = 4, rows: int = ROWS, seed: int = 0) -> str:
    """Files of events, half of which are of one user, in the order of their times; the pattern that matches them."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        users = np.where(rng.random(rows) < 0.5, 7, rng.integers(0, 30, rows))
        x = rng.standard_normal(rows)
        x[rng.integers(0, rows, 5)] = np.nan
        table = pa.table(
            {
                "user": users,
                "ts": pa.array(np.cumsum(rng.integers(1, 4, rows)) + i * 4 * rows, pa.timestamp("s")),
                "x": pa.array(x, from_pandas=True),
                "n": rng.integers(0, 2**40, rows),
                "kind": rng.choice([f"kind {k}" for k in range(3 + 2 * i)], rows),
            }
        )
        pq.write_table(table, folder / f"{i}.parquet", row_group_size=90)
    return str(folder / "*.parquet")


def contents(folder: Path) -> dict[str, bytes]:
    """Every byte of a store, the lock aside."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.name != ".lock"}


def pack_in_parts(source: Any, path: str | Path, count: int, *, merge: bool, **options: Any) -> None:
    """All parts one after the other, the last first, and the join; again where types changed meanwhile."""
    for attempt in range(3):
        try:
            for number in reversed(range(count)):
                pack_part(source, path, f"{number + 1}/{count}", **options)
            for number in range(count if merge else 0):
                pack_part(source, path, f"{number + 1}/{count}", merge=True, **options)
            join_parts(source, path, **options)
            return
        except PartsMissingError as error:
            if attempt == 2 or "The types of some columns changed meanwhile" not in str(error):
                raise

"""The data that examples of the documents start from, made small; the hidden setup of a page calls these functions in its own folder."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
SCRIPT = """\
import argparse

import torch
from torch.utils.data import DataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=60)
parser.add_argument("--config")
arguments = parser.parse_args()
data = [torch.randn(64) for _ in range(1024)]
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(data, batch_size=16, shuffle=True)
for epoch in range(max(arguments.epochs, 20)):
    for batch in loader:
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
"""
CONFIG = """\
data:
  store: prices.stoker
  view: {name: windows, length: 16, horizon: 4}
  columns: [close]
  batch_size: 64
split: {valid: 0.3}
model: linear
train: {epochs: 2}
search:
  space: {optimizer.lr: [log, 1e-4, 1e-1]}
  budget: 3
"""


def repository() -> None:
    """What `pip install packages/stoker` needs, as in a clone."""
    for package in ("stoker", "stoker-recipes"):
        Path("packages", package).mkdir(parents=True)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / "packages" / package / name, Path("packages", package, name))
        Path("packages", package, "src").symlink_to(ROOT / "packages" / package / "src")


def script(name: str = "train.py") -> None:
    """A training script that takes --epochs."""
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(SCRIPT)


def prices(days: tuple[int, ...] = (14, 15, 16)) -> None:
    """A CSV file of two symbols per day, and new.csv."""
    Path("prices").mkdir(exist_ok=True)
    for day in days:
        write(f"prices/2026-11-{day}.csv", price_rows(datetime(2026, 11, day)))
    write("new.csv", price_rows(datetime(2026, 11, max(days) + 1)))


def price_rows(begin: datetime, steps: int = 96) -> list[dict[str, Any]]:
    """Quarter hours of IBM and MSFT, in the order of time."""
    rng = np.random.default_rng(begin.day)
    return [
        {
            "symbol": symbol,
            "ts": begin + timedelta(minutes=15 * step),
            "close": 100 + float(rng.normal()),
            "side": "buy" if step % 2 else "sell",
        }
        for step in range(steps)
        for symbol in ("IBM", "MSFT")
    ]


def config(name: str = "config.yaml") -> None:
    """The configuration of a small run, and its store."""
    import stoker

    stoker.pack("prices/*.csv", "prices.stoker", series="symbol", time="ts", replace=True)
    Path(name).write_text(CONFIG)


def write(path: str, rows: list[dict[str, Any]]) -> None:
    """Write rows as CSV or Parquet, by the name of the file."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    table = pa.Table.from_pylist(rows)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    (parquet.write_table if path.endswith(".parquet") else csv.write_csv)(table, path)

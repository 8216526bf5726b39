"""A small configuration, and how tests read one."""

from __future__ import annotations

from pathlib import Path

from stoker.experiment import Config, load

SMALL = """\
data:
  store: prices.stoker
  view: {name: windows, length: 48, horizon: 8}
  batch_size: 256
model: transformer
optimizer: {lr: 1e-3}
train:
  epochs: 3
"""


def read(folder: Path, text: str = SMALL, *assignments: str) -> Config:
    path = folder / "c.yaml"
    path.write_text(text)
    return load(path, overrides=assignments)

"""The samples of the authors' code, as it reads a path."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset

from stoker_recipes.time_moe.data import Corpus, open_corpus
from stoker_recipes.time_moe.dataset import CompatSamples


def assert_samples_are_theirs(
    path: Path, length: int, *, stride: int | None = None, method: str | None = None, corpus: Corpus | None = None
) -> None:
    """Compare all samples of a path bit for bit, gathered in random order."""
    opened = open_corpus(path, report=lambda _: None) if corpus is None else corpus
    kind: Any = method or "none"
    found = CompatSamples(opened, length, stride=stride, method=kind)
    with np.errstate(all="ignore"):
        expected = list(TimeMoEWindowDataset(TimeMoEDataset(path, method), length, stride=stride))
    assert len(found) == len(expected)
    order = np.random.default_rng(0).permutation(len(expected))
    batch = found.gather(order)
    for name in ("input_ids", "labels", "loss_masks"):
        whole = np.stack([expected[i][name] for i in order])
        assert batch[name].numpy().dtype == whole.dtype
        assert batch[name].numpy().tobytes() == whole.tobytes()

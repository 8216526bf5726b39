"""Short series: targets per second of whole steps, loader and model. The authors' loader has one series per row, the recipe packs rows."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import record
from benchmarks.before.timemoe_dataset import TimeMoEDataset, TimeMoEWindowDataset, collate
from benchmarks.time_moe.folder import walks, write_folder
from benchmarks.time_moe.setting import DEVICE, ON_GPU, PRECISIONS, Setting, synchronize
from benchmarks.time_moe.ways import RECIPE, original_step, trainer_of
from stoker_recipes.run_folder import make_settings
from stoker_recipes.time_moe import time_moe_loss
from stoker_recipes.time_moe.batches import Batches
from stoker_recipes.time_moe.settings import TimeMoeSettings
from stoker_recipes.time_moe.training import make_rows

MEAN_POINTS = 302
"""Points of a series in the mean, as in kdd_cup_2018."""
WINDOW = 10 if ON_GPU else 1
"""Steps of the recipe between two readings of the clock."""
UNCOUNTED = 2
"""First readings, in which the recipe compiles and captures."""


class Rates:
    """A logger that keeps the steps per second of each window."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def write(self, step: int, values: Mapping[str, Any]) -> None:
        """Keep a window."""
        self.values += [values["rate"]] if "rate" in values else []

    def close(self) -> None:
        """Nothing to close."""


def short(setting: Setting, *, rounds: int = 5) -> dict[str, Any]:
    """Both ways, one after the other."""
    mean = min(MEAN_POINTS, setting.length // 6)
    lengths = np.random.default_rng(0).lognormal(np.log(mean) - 0.125, 0.5, 10 * setting.batch * setting.length // mean)
    precision = PRECISIONS[0]
    with tempfile.TemporaryDirectory() as name:
        folder = write_folder(Path(name) / "series", walks(np.maximum(8, lengths).astype(int).tolist()))
        theirs, their_share = original_rates(setting, folder, precision, rounds)
        rows = make_rows(make_settings(TimeMoeSettings, {"data": str(folder), "length": setting.length, "valid": 0.0}))
        steps = (rounds + UNCOUNTED) * WINDOW
        rates = Rates()
        trainer = trainer_of(setting.model(), precision, loss=time_moe_loss, callbacks=[rates], log_every=WINDOW)
        trainer.fit(Batches(rows.train, batch_size=setting.batch, steps=steps, device=DEVICE))
    targets = setting.batch * setting.length * rows.useful
    ours = [rate * targets for rate in rates.values[UNCOUNTED:]]
    found = {
        "targets per second, authors": record.spread(theirs),
        "targets per second, recipe": record.spread(ours),
        "times faster": record.ratio(ours, theirs),
        "note": f"targets: {their_share:.0%} of positions before, {rows.useful:.0%} after",
    }
    print(found, flush=True)
    return found


def original_rates(setting: Setting, folder: Path, precision: str, rounds: int) -> tuple[list[float], float]:
    """Targets per second of steps of the authors' loop, and the share of positions that are targets."""
    dataset = TimeMoEWindowDataset(TimeMoEDataset(folder, "zero"), setting.length)
    order = np.random.default_rng(0).permutation(len(dataset)).tolist()
    model = setting.original()
    optimizer = torch.optim.AdamW(model.parameters(), **RECIPE)
    rates, targets = [], 0
    for number in range(rounds + 1):
        synchronize()
        begin = time.perf_counter()
        chosen = [order[(number * setting.batch + row) % len(order)] for row in range(setting.batch)]
        batch = collate([dataset[index] for index in chosen])
        entries = [batch[entry].to(DEVICE) for entry in ("input_ids", "labels", "loss_masks")]
        original_step(model, optimizer, *entries, precision=precision)
        synchronize()
        count = int(batch["loss_masks"].sum())
        if number:
            rates.append(count / (time.perf_counter() - begin))
            targets += count
    return rates, targets / (rounds * setting.batch * setting.length)

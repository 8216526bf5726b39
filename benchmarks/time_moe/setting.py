"""The setting: the model, its weights and its data, as every part of the benchmark measures them."""

from __future__ import annotations

import numpy as np
import torch

import stoker
from benchmarks.before.time_moe_original import OriginalTimeMoe
from stoker_recipes.time_moe import SIZES, Size, TimeMoe
from stoker_recipes.time_moe.model import to_official

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = DEVICE == "cuda"
PRECISIONS = ("bf16", "tf32") if ON_GPU else ("fp32",)


class Setting:
    """What is measured."""

    def __init__(self, is_small: bool, precision: str) -> None:
        self.size = SIZES["tiny" if not ON_GPU else "50m"]
        self.length = 64 if not ON_GPU else 2048
        self.batch = 8 if ON_GPU else 2
        self.steps = 10 if is_small else 24
        self.curve_steps = 20 if is_small else 200
        self.curve_batch = 2
        """Few rows, so that the authors' way, whose host waits 96 times per step, has time for 200 steps."""
        self.precision = precision
        self.use_size(self.size)

    def use_size(self, size: Size) -> None:
        """Of this size, and from weights that are always the same."""
        self.size = size
        torch.manual_seed(0)
        self._first = TimeMoe(size).state_dict()

    def model(self) -> TimeMoe:
        """The recipe's model, always with the same weights."""
        model = TimeMoe(self.size).to(DEVICE)
        model.load_state_dict(self._first)
        return model

    def original(self) -> OriginalTimeMoe:
        """The authors' model with these weights."""
        model = OriginalTimeMoe(self.size)
        model.load_state_dict(to_official(self._first, self.size))
        return model.to(DEVICE)

    def feed(self, steps: int, batch: int | None = None) -> stoker.Feed:
        """Waves with noise, normalised, in order."""
        batch = batch or self.batch
        rng = np.random.default_rng(0)
        count = steps * batch
        t = np.arange(self.length + 1, dtype=np.float32)
        series = sum(
            rng.uniform(0.3, 1.5, (count, 1)).astype(np.float32)
            * np.sin(t / rng.uniform(3, 60, (count, 1)).astype(np.float32) + rng.uniform(0, 6, (count, 1)).astype(np.float32))
            for _ in range(2)
        ) + rng.normal(0, 0.3, (count, len(t))).astype(np.float32)
        series = (series - series.mean(1, keepdims=True)) / series.std(1, keepdims=True)
        store = stoker.Store.from_arrays(x=series.astype(np.float32))
        residency = "device" if ON_GPU else "host"
        return stoker.Feed(
            store,
            stoker.Segments(self.length + 1),
            batch_size=batch,
            device=DEVICE,
            loading=stoker.feed.Loading(residency=residency),
            last_batch="drop",
            returns=stoker.feed.Returns(masks=False),
        )


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()

"""Curves: losses of both ways from the same weights on the same batches.

A choice between experts flips by the last bit, and then training runs diverge. How far they part without anybody's fault, the authors'
model says against itself: in another precision, or with the last bits of its weights changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from benchmarks.before.time_moe_original import OriginalTimeMoe
from benchmarks.time_moe.setting import ON_GPU, Setting
from benchmarks.time_moe.ways import original_steps, trainer_of
from benchmarks.train.gpu_trainer import Losses

FIRST = 12
"""Losses that are kept one by one: the first updates of AdamW are the largest."""


def curve(setting: Setting) -> dict[str, Any]:
    """Means of ten losses at a time, along the same steps, and how far apart they are."""
    feed = setting.feed(setting.curve_steps, setting.curve_batch)
    curves: dict[str, list[float]] = {}

    def keep(name: str, losses: list[float]) -> None:
        curves[name] = losses
        print(name, [round(loss, 4) for loss in losses[:FIRST]], [round(loss, 4) for loss in means(losses)], flush=True)

    for precision in ("bf16", "tf32") if ON_GPU else ("fp32",):
        kept = Losses()
        trainer_of(setting.model(), precision, callbacks=[kept], log_every=1).fit(feed, epochs=1)
        keep(f"recipe {precision}", kept.means)  # each of one step
    pairs = {"bf16": "bf16", "tf32": "fp32"} if ON_GPU else {"fp32": "fp32"}
    for precision in pairs.values():
        losses = torch.stack(list(original_steps(setting.original(), iter(feed), precision=precision)))
        keep(f"original {precision}", losses.tolist())
    if not ON_GPU:
        losses = torch.stack(list(original_steps(nudged(setting.original()), iter(feed), precision="fp32")))
        keep("original fp32, last bits of weights changed", losses.tolist())
    controls = ("original bf16", "original fp32") if ON_GPU else ("original fp32, last bits of weights changed", "original fp32")
    compared = [(f"recipe {ours}", f"original {theirs}") for ours, theirs in pairs.items()]
    found = {
        "rows x points": f"{setting.curve_batch} x {setting.length}",
        "losses, means of 10 steps": {name: [round(loss, 5) for loss in means(losses)] for name, losses in curves.items()},
        "first losses": {name: [round(loss, 5) for loss in losses[:FIRST]] for name, losses in curves.items()},
        "apart, share of the loss": {
            f"{one} from {other}": apart(curves[one], curves[other]) for one, other in (*compared, controls)
        },
    }
    print(found["apart, share of the loss"], flush=True)
    return found


def means(losses: list[float]) -> list[float]:
    """Of ten at a time."""
    return [float(np.mean(losses[begin : begin + 10])) for begin in range(0, len(losses), 10)]


def apart(one: list[float], other: list[float]) -> dict[str, float]:
    """How far means are apart, in the mean and at most, and how far at the very first step."""
    shares = [abs(a - b) / b for a, b in zip(means(one), means(other), strict=True)]
    return {"first step": abs(one[0] - other[0]) / other[0], "mean": float(np.mean(shares)), "max": max(shares)}


def nudged(model: OriginalTimeMoe) -> OriginalTimeMoe:
    """The same weights but for their last bits."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1 + 1e-7 * torch.randn_like(weight))
    return model

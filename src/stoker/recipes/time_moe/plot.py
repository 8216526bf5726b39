"""The picture of a forecast: the points before it, what the model says, and what came, where that is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import stoker

Array = npt.NDArray[Any]

SHOWN = 3
"""Horizons of the past that are shown."""


def plot_forecast(path: str | Path, known: Array, found: Array, actual: Array | None, *, title: str) -> Path:
    """Draw a forecast into a picture: .svg or .png. `known` is the series up to where it begins."""
    past = np.asarray(known, dtype=np.float64)[-max(SHOWN * len(found), 32) :]
    now = len(known) - 1
    steps = list(range(now, now + len(found) + 1))
    # Curves begin at the last known point, so that there is no gap.
    joined = [past[-1], *found.tolist()]
    curves = [
        stoker.train.Curve(colour=0, steps=list(range(now + 1 - len(past), now + 1)), values=past.tolist(), smooth=False),
        stoker.train.Curve(colour=1, steps=steps, values=joined, smooth=False),
    ]
    legend = ["known", "forecast"]
    if actual is not None:
        came = [past[-1], *np.asarray(actual, dtype=np.float64).tolist()]
        curves.append(stoker.train.Curve(colour=2, steps=steps[: len(came)], values=came, dashed=True, smooth=False))
        legend.append("what came")
    panel = stoker.train.Panel(title=f"the next {len(found):,} steps", curves=curves)
    return stoker.train.save_picture(path, [panel], title=title, legend=legend)

"""Forecasting: a trained model and the points that are known become the points that follow, in the units of the data.

A model sees series centred and scaled. The scale of a training is that of a whole series; what follows is not known here, so it is
that of the context, by the same rule. What is missing within a context counts as its mean.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

import stoker
from stoker.devices import check_device
from stoker.errors import OptionError, SourceNotFound
from stoker.recipes.time_moe.model import TimeMoe
from stoker.recipes.time_moe.samples import LEAST_DEVIATION, Method
from stoker.recipes.time_moe.settings import NAME, read_settings
from stoker.recipes.time_moe.training import find_size
from stoker.recipes.time_moe.weights import CONFIG, load_weights, read_size

Array = npt.NDArray[Any]

LARGE = 1e140
"""Squares of larger values, summed, may be beyond float64."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model that is ready to forecast."""

    model: TimeMoe
    method: Method
    """How it was trained to see series."""
    length: int
    """Points that it looks back on, at most."""
    source: str
    """Where its weights are from, in words."""
    step: int = 0
    """Of the run."""


def load_model(path: str | Path, *, device: str = "cpu", latest: bool = False) -> Loaded:
    """The best model of a run (or the `latest`), or that of an official checkpoint."""
    folder = Path(path)
    check_device(device)
    if (folder / NAME).is_file():
        settings = read_settings(folder)
        model = TimeMoe(find_size(settings)).to(device)
        found = stoker.train.load_trained(model, folder, latest=latest)
        source = f"{folder}, step {found.step:,}"
        return Loaded(model=model.eval(), method=settings.normalize, length=settings.length, source=source, step=found.step)
    if (folder / CONFIG).is_file():
        model = TimeMoe(read_size(folder)).to(device)
        load_weights(model, folder)
        return Loaded(model=model.eval(), method="zero", length=model.size.max_position, source=str(folder))
    raise SourceNotFound(
        f"{folder} is neither a run of Time-MoE ({NAME}) nor a checkpoint ({CONFIG} and model.safetensors). "
        f"Train one: stoker train time-moe --data …"
    )


def scale_rows(context: Array, method: Method) -> tuple[Array, Array, Array]:
    """Rows of points, scaled by themselves and without gaps; and what each was centred on and divided by."""
    rows = np.asarray(context, dtype=np.float64)
    known = np.isfinite(rows)
    counts = np.maximum(known.sum(1), 1)
    filled = np.where(known, rows, 0.0)
    centers, divisors = np.zeros(len(rows)), np.ones(len(rows))
    if method == "zero":
        # In units of the largest value where sums would be beyond float64.
        largest = np.abs(filled).max(1, initial=0.0)
        units = np.where(largest > LARGE, largest, 1.0)
        shares = filled / units[:, None]
        centers = shares.sum(1) / counts
        deviations = units * np.sqrt((np.where(known, shares - centers[:, None], 0.0) ** 2).sum(1) / counts)
        centers = centers * units
        divisors = np.where(deviations > LEAST_DEVIATION * np.abs(centers), deviations, 1.0)
    elif method == "max":
        largest = np.abs(filled).max(1)
        divisors = np.where(largest > 0, largest, 1.0)
    scaled = np.where(known, (rows - centers[:, None]) / divisors[:, None], 0.0)
    return scaled.astype(np.float32), centers, divisors


def forecast(loaded: Loaded, context: Array, horizon: int) -> Array:
    """The `horizon` points that follow each row of `context` [rows, points], in its units, float64."""
    if isinstance(horizon, bool) or not isinstance(horizon, int) or horizon < 1:
        raise OptionError(f"horizon is {horizon!r}; expected a whole number from 1.")
    room = min(loaded.length, loaded.model.size.max_position - horizon)
    if room < 1:
        most = loaded.model.size.max_position - 1
        raise OptionError(f"horizon is {horizon:,}, but the model has {most + 1:,} positions. Give at most {most:,}.")
    seen = np.asarray(context, dtype=np.float64)[:, -room:]
    empty = np.flatnonzero(~np.isfinite(seen).any(axis=1))
    if len(empty):
        raise OptionError(
            f"row {empty[0]:,} of the context has no known point among its last {seen.shape[1]:,}, so nothing follows from it. "
            f"Forecast from an earlier step (--at), look back further (--context), or choose another series."
        )
    scaled, centers, divisors = scale_rows(seen, loaded.method)
    device = next(loaded.model.parameters()).device
    with torch.no_grad():
        found = loaded.model.forecast(torch.from_numpy(scaled).to(device), horizon).double().cpu().numpy()
    return np.asarray(found * divisors[:, None] + centers[:, None])


def errors_of(found: Array, actual: Array) -> tuple[float, float, int]:
    """MSE and MAE over the points that are known to have come (NaN: not), and how many those are."""
    apart = (found - actual)[np.isfinite(actual)]
    if not len(apart):
        return math.nan, math.nan, 0
    return float(np.mean(apart**2)), float(np.mean(np.abs(apart))), len(apart)


def as_csv(found: Array, actual: Array | None, *, first: int) -> str:
    """A line a step: its number in the series, the forecast, and what really came, where that is known."""
    head = "step,forecast" + (",actual" if actual is not None else "")
    rows = [f"{first + i},{value!r}" for i, value in enumerate(found.tolist())]
    if actual is not None:
        rows = [f"{row},{value!r}" if math.isfinite(value) else f"{row}," for row, value in zip(rows, actual.tolist(), strict=True)]
    return "\n".join([head, *rows]) + "\n"


def as_json(found: Array, actual: Array | None, **told: Any) -> str:
    """All of it for programs; null where nothing is known."""
    values: dict[str, Any] = {"forecast": found.tolist()}
    if actual is not None:
        values["actual"] = [value if math.isfinite(value) else None for value in actual.tolist()]
    return json.dumps({**told, **values})

"""Predictions of a trained run: azimuth, zenith and kappa of each event, as a table or a file to submit; and their score.

    stoker.load("runs/ice").predict("test.stoker")

The score is the mean great-circle angle in degrees, in float64 and without a clip, of all events and by the number of their pulses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor, nn

import stoker
from stoker.errors import OptionError
from stoker.experiment import TrainedRun
from stoker.extend import Array
from stoker_recipes.icecube.batches import MAX_DOMS, EventBatch
from stoker_recipes.icecube.data import geometry_of
from stoker_recipes.icecube.feed import EventFeed
from stoker_recipes.icecube.losses import angular_error, make_mixture, point_estimate, to_angles
from stoker_recipes.icecube.settings import IceCubeSettings
from stoker_recipes.icecube.tokens import expand, read_geometry, scale_geometry
from stoker_recipes.icecube.training import make_model
from stoker_recipes.run_folder import read_settings

SLICES: Mapping[str, tuple[int, float]] = {"below 200": (0, 200), "200 to 999": (200, 1000), "from 1000": (1000, np.inf)}
"""Events by their number of pulses."""


@torch.no_grad()
def predict_batch(model: nn.Module, batch: EventBatch, geometry: Tensor) -> tuple[Tensor, Tensor]:
    """Azimuth and zenith [B, 2] and kappa [B] of the events of a batch, in float64; kappa is NaN for a directional head."""
    device = geometry.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
        raw = model(
            expand(batch, geometry, dtype=torch.bfloat16 if device == "cuda" else torch.float32), batch.dom_offsets
        ).double()
    if model.size.head != "vmf":  # type: ignore[union-attr]
        return to_angles(raw), torch.full_like(raw[:, 0], torch.nan)
    direction, kappa = point_estimate(make_mixture(raw))
    return to_angles(direction), kappa


@dataclass(frozen=True, kw_only=True, repr=False)
class IceCubeRun(TrainedRun):
    """A trained run. `predict` returns one row per event."""

    device: str
    max_doms: int = MAX_DOMS

    def predict(self, data: object, *, batch_size: int = 4096, **options: Any) -> pa.Table:
        """Predict the directions of all events of a store.

        Args:
            data: A store that `pack_events` made, or its path.
            batch_size: Events at once.
            options: Those of other runs: they have no meaning for events, and only their defaults are taken.

        Returns:
            A table with the columns `event_id`, `azimuth`, `zenith` (radians) and `kappa`, in the order of the store.

        Raises:
            OptionError: `data` is not a store of events, or an option has no meaning here.
        """
        usual: dict[str, Any] = {"which": "last", "horizon": None, "stride": None, "short": "error", "pack_options": {}}
        for name, value in options.items():
            if name not in usual or (value or usual[name]) != usual[name]:
                raise OptionError(
                    f"{name} is {value!r}, but a run of icecube predicts one direction per event. Leave it out.", parameter=name
                )
        tables = []
        for source in data if isinstance(data, list) else [data]:
            store = stoker.open(source) if isinstance(source, str | os.PathLike) else source
            if not isinstance(store, stoker.Store):
                raise OptionError.expected("data", store, "a store that `stoker pack --recipe icecube` made, or its path")
            tables.append(predict_store(self.model, store, device=self.device, batch_size=batch_size, max_doms=self.max_doms))
        return pa.concat_tables(tables)


def predict_store(
    model: nn.Module, store: stoker.Store, *, device: str, batch_size: int = 4096, max_doms: int = MAX_DOMS
) -> pa.Table:
    """The directions of all events of a store, as `IceCubeRun.predict` gives them."""
    geometry = scale_geometry(read_geometry(geometry_of(store))).to(device)
    rows: list[Array] = []
    ids: list[Array] = []
    for batch in EventFeed(store, batch_size=min(batch_size, max(1, len(store))), max_doms=max_doms, device=device):
        angles, kappa = predict_batch(model, batch, geometry)
        rows.append(torch.cat([angles, kappa.unsqueeze(1)], 1).cpu().numpy())
        ids.append(batch.event_id.cpu().numpy())
    values = np.concatenate(rows) if rows else np.empty((0, 3))
    names = ("azimuth", "zenith", "kappa")
    columns = {"event_id": np.concatenate(ids) if ids else np.empty(0, np.int64)}
    return pa.table(columns | {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(names)})


def score_predictions(table: pa.Table, store: stoker.Store) -> dict[str, dict[str, float]]:
    """Mean and median angle in degrees between predictions and the store's own directions: of all events, and by pulses.

    Args:
        table: What `predict` returned for the store.
        store: The store, with azimuths and zeniths.

    Returns:
        By slice: `events`, `mean` and `median`. Slices without an event are left out.

    Example:
        >>> store = stoker.Store.from_arrays(time=[np.arange(3), np.arange(300)], azimuth=np.zeros(2), zenith=np.ones(2))
        >>> table = pa.table({"azimuth": [0.0, 0.0], "zenith": [1.0, 1.5]})
        >>> {name: round(score["mean"], 3) for name, score in score_predictions(table, store).items()}
        {'all': 14.324, 'below 200': 0.0, '200 to 999': 28.648}
    """
    predicted = torch.from_numpy(np.stack([table[name].to_numpy() for name in ("azimuth", "zenith")], 1))
    target = torch.from_numpy(np.stack([store.column(name) for name in ("azimuth", "zenith")], 1).astype(np.float64))
    errors, pulses = angular_error(predicted, target).numpy(), np.asarray(store.lengths)
    known = np.isfinite(errors)
    chosen = {"all": known, **{name: known & (pulses >= low) & (pulses < high) for name, (low, high) in SLICES.items()}}
    return {
        name: {"events": int(rows.sum()), "mean": float(errors[rows].mean()), "median": float(np.median(errors[rows]))}
        for name, rows in chosen.items()
        if rows.any()
    }


def open_run(folder: Path, *, latest: bool, device: str) -> IceCubeRun:
    """A run, for predictions: `stoker.load` and `stoker predict`."""
    settings = read_settings(folder, IceCubeSettings)
    model = make_model(settings)
    step = stoker.train.load_trained(model, folder, latest=latest).step
    model.to(device).eval()
    return IceCubeRun(folder=folder, step=step, model=model, run=_refuse, device=device, max_doms=settings.max_doms)


def _refuse(*arguments: Any, **options: Any) -> Any:
    raise OptionError("a run of icecube has a table of its own. Use predict().")

"""Predictions of a trained run for all bars of some files: `stoker.load(run).predict(data)`."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import stoker
import stoker_recipes.tfa
from stoker.errors import OptionError
from stoker.experiment import Predicted, TrainedRun
from stoker.extend import disk
from stoker_recipes.tfa.bundle import Bundle, read_model
from stoker_recipes.tfa.data import bars_of, check_bars, read_bars
from stoker_recipes.tfa.model import TfaModel
from stoker_recipes.tfa.settings import DatasetSettings, Settings

_ROW = "row"
_ROWS_AT_ONCE = 4096  # rows whose logits are computed together


def open_run(folder: Path, *, latest: bool, device: str) -> TrainedRun:
    """A run, for predictions of all bars of some files."""
    settings, bundle, spec, model = read_model(folder, latest=latest)
    job = partial(_predict, settings, bundle, spec, model.to(device))
    return TrainedRun(folder=folder, step=bundle.step, model=model, run=job)


def _predict(
    settings: Settings,
    bundle: Bundle,
    spec: dict[str, Any],
    model: TfaModel,
    data: Any,
    *,
    which: str,
    horizon: int | None,
    stride: int | None,
    short: str,
    batch_size: int,
) -> list[Predicted]:
    """The chance of a rise at each bar (or the last of each series) that has enough bars before it."""
    if horizon is not None or stride is not None:
        raise OptionError(
            f"the model predicts the label of each bar (label_horizon {settings.label_horizon}). Leave out horizon, stride.",
            parameter="horizon",
        )
    if isinstance(data, stoker.Store):
        bars = bars_of(data, DatasetSettings(path=data.name))
    else:
        with disk.temporary_folder() as folder:
            bars = read_bars([DatasetSettings(path=str(data))], folder)
    numbered = replace(bars, columns={**bars.columns, _ROW: np.arange(bars.num_bars)})
    checked = check_bars(numbered, gaps=settings.gaps)
    rows, logits = [], []
    for number in range(len(checked.names)):
        columns = {name: values[checked.series(number)] for name, values in checked.columns.items()}
        row_numbers = columns.pop(_ROW).astype(np.int64)
        features = np.asarray(stoker_recipes.tfa.features(columns, spec).values, dtype=np.float32)
        ready = np.isfinite(features).all(axis=1) & (np.arange(len(features)) >= bundle.warm_up)
        # A bar has a logit where it and the rows before it, as many as the model sees, are ready.
        since = np.arange(len(ready)) - np.maximum.accumulate(np.where(ready, -1, np.arange(len(ready))))
        ends = np.flatnonzero(since >= bundle.reach)
        ends = ends[ends == len(ready) - 1] if which == "last" and len(ready) else ends
        for first in range(0, len(ends), _ROWS_AT_ONCE):
            some = ends[first : first + _ROWS_AT_ONCE]
            windows = np.stack([features[end + 1 - bundle.reach : end + 1] for end in some])
            with torch.inference_mode():
                predicted = model(torch.from_numpy(windows).to(next(model.parameters()).device))[:, -1]
            rows.append(row_numbers[some])
            logits.append(predicted.double().cpu().numpy())
    row = np.concatenate([*rows, np.zeros(0, dtype=np.int64)])
    logit = np.concatenate([*logits, np.zeros(0)])
    series = np.searchsorted(bars.offsets, row, side="right") - 1
    if which == "last":  # where a series is cut, only its end counts
        is_end = row == bars.offsets[series + 1] - 1
        row, logit, series = row[is_end], logit[is_end], series[is_end]
    missing = np.setdiff1d(np.arange(len(bars.names)), series)
    if len(missing) and (short == "error" or len(missing) == len(bars.names)):
        number = int(missing[0])
        needs = bundle.warm_up + bundle.reach
        raise OptionError(
            f"series {bars.names[number]!r} of {bars.sources[number]} has no prediction at its end: it needs {needs:,} complete bars in a "
            f"row, and has {int(bars.lengths[number]):,} bars. Add earlier bars, or pass short='skip'.",
            parameter="short",
        )
    store = stoker.Store.from_arrays(lengths=bars.lengths, close=bars.columns["close"])
    times = pa.array(bars.times[row].astype("datetime64[ms]"))
    values = {"prediction": 1 / (1 + np.exp(-logit)), "logit": logit}
    steps = row - bars.offsets[series]
    return [
        Predicted(store=store, time=None, series=series, steps=steps, column="label", values=values, names=bars.names, times=times)
    ]

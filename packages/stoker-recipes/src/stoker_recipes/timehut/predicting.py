"""A trained encoder: representations of new series, and classes for `stoker.load(run).predict(data)`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

import stoker
from stoker.errors import ConfigError, OptionError
from stoker.experiment import Predicted, TrainedRun
from stoker.extend import Array
from stoker_recipes.run_folder import read_recipe
from stoker_recipes.timehut.data import GlobalScaler, read_series, read_store
from stoker_recipes.timehut.evaluation import fit_classifier
from stoker_recipes.timehut.model import encode, from_tensors, make_layout, pool_over_time, sizes_of
from stoker_recipes.timehut.population import encode_series
from stoker_recipes.timehut.settings import EncoderSettings

ENCODER_NAME, TRAIN_NAME, SCORE_NAME = "encoder.safetensors", "train.npz", "score.json"


class TimeHutRecord(TypedDict):
    """The content of recipe.json."""

    recipe: str
    data: str
    test: str | None
    normalize: str
    settings: dict[str, Any]


def check_record(record: dict[str, Any]) -> None:
    """Check the record of a run: its fields, and its settings."""
    EncoderSettings(**msgspec.convert(record, TimeHutRecord)["settings"])


@dataclass(frozen=True, kw_only=True)
class TrainedEncoder:
    """A trained encoder with what it needs for new series."""

    row: torch.Tensor
    """The weights of the whole encoder."""
    channels: int
    settings: EncoderSettings
    scaler: GlobalScaler | None
    length: int
    """Steps of the training series."""
    updates: int

    def __call__(self, values: Array) -> Array:
        """Representations (N, width) of series (N, T, D), which are scaled first."""
        if values.ndim != 3 or values.shape[2] != self.channels:
            raise OptionError(
                f"the series have the shape {values.shape}; expected (series, steps, {self.channels} channels).", parameter="values"
            )
        scaled = values if self.scaler is None else self.scaler(values)
        return np.asarray(encode_series(self.row[None], make_layout(self.settings.size(self.channels)), scaled)[0])


def load_encoder(folder: str | Path) -> TrainedEncoder:
    """The encoder of a finished run.

    Args:
        folder: Folder of the run.

    Raises:
        OptionError: It is not a run of this recipe, or has not finished.
    """
    folder = Path(folder)
    settings = EncoderSettings(**read_recipe(folder, "timehut", check=check_record)["settings"])
    path = folder / ENCODER_NAME
    if not path.is_file():
        raise OptionError(
            f"{folder} has no {ENCODER_NAME}: its training has not finished. Resume it: stoker train --resume {folder}", path=folder
        )
    content = path.read_bytes()
    try:
        tensors = load(content)
        facts = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        scaler = json.loads(facts["scaler"])
        size = sizes_of(tensors)
        scaler = {name: tuple(values) for name, values in (scaler or {}).items()}
        row = from_tensors(tensors, size)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ConfigError(f"{path} is damaged: {error}") from error
    return TrainedEncoder(
        row=row,
        channels=size.channels,
        settings=settings,
        scaler=GlobalScaler(**scaler) if scaler else None,
        length=int(facts["length"]),
        updates=int(facts["updates"]),
    )


class EncoderModule(nn.Module):
    """The encoder as a module: series (N, T, D) become representations (N, width)."""

    def __init__(self, encoder: TrainedEncoder, device: str) -> None:
        super().__init__()
        self.row = nn.Parameter(encoder.row.to(device)[None], requires_grad=False)
        self._layout, self._scaler = make_layout(encoder.settings.size(encoder.channels)), encoder.scaler

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Representations of series; NaN is missing."""
        if self._scaler is not None:
            x = (x - x.new_tensor(self._scaler.mean)) / x.new_tensor(self._scaler.std)
        is_known = ~torch.isnan(x).any(-1)
        return pool_over_time(encode(self.row, self._layout, torch.where(is_known[..., None], x, 0)[None], is_known[None]))[0]


def open_run(folder: Path, *, latest: bool, device: str) -> TrainedRun:
    """A run, for predictions of classes: `stoker.load` and `stoker predict`."""
    encoder = load_encoder(folder)
    return TrainedRun(
        folder=folder, step=encoder.updates, model=EncoderModule(encoder, device), run=partial(_predict, folder, encoder)
    )


def _predict(folder: Path, encoder: TrainedEncoder, data: Any, *, which: str, horizon: int | None, stride: int | None,
             short: str, batch_size: int) -> list[Predicted]:  # fmt: skip
    """The class of every series, by the papers' SVM on the representations of the training series."""
    if horizon is not None or stride is not None or which != "last":
        raise OptionError("the model predicts one class per series. Leave out horizon, stride and which='all'.", parameter="which")
    with np.load(folder / TRAIN_NAME, allow_pickle=False) as saved:
        if "labels" not in saved:
            raise OptionError(
                f"{folder} was trained without labels, so it predicts no classes. Use `stoker timehut embed` for representations.",
                path=folder,
            )
        known, labels = saved["embeddings"], saved["labels"]
    series = data if isinstance(data, stoker.Store) else str(data)
    values = (read_store(series, series.name) if isinstance(series, stoker.Store) else read_series(series)).values
    classes = fit_classifier(known, labels, method=encoder.settings.method).predict(encoder(values))
    store = stoker.Store.from_arrays(value=[np.zeros(values.shape[1], np.float32)] * len(values))
    return [
        Predicted(
            store=store,
            time=None,
            series=np.arange(len(values)),
            steps=np.full(len(values), values.shape[1]),
            column="label",
            values={"prediction": classes.tolist()},
        )
    ]

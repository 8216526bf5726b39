"""Weights: what a run has learned, given to a model of the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import nn

from stoker.errors import CheckpointError, CheckpointInvalid
from stoker.train import contents
from stoker.train.checkpoints import Checkpoint, Checkpoints


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """Which weights a model was given."""

    step: int
    averaged: bool
    """Whether they are the average that the run kept."""


def load_trained(model: nn.Module, folder: str | Path, *, latest: bool = False) -> Loaded:
    """Give a model the best weights of a run (or the `latest`), averaged where the run kept an average."""
    found = find_trained(folder, latest=latest)
    return Loaded(step=found.step, averaged=load_weights(model, found))


def find_trained(folder: str | Path, *, latest: bool = False) -> Checkpoint:
    """The best checkpoint of a run, or the latest."""
    with Checkpoints(Path(folder) / "checkpoints") as checkpoints:
        found = None if latest else checkpoints.best()
        found = found or checkpoints.latest()
    if found is None:
        raise CheckpointError(f"{folder} has no checkpoint. Train it first: stoker train --resume {folder}")
    return found


def load_weights(model: nn.Module, found: Checkpoint) -> bool:
    """Give a model the weights of a checkpoint, averaged where it has an average; says whether it has."""
    with contents.naming(found):
        contents.check_weights(model, found.parts.get("model"))
        weights = dict(found.parts["model"])
        average = contents.average_of(found.parts.get("ema"), weights)
    weights.update({name: tensor.to(weights[name].dtype) for name, tensor in average.items()})
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointInvalid(f"{found.path} is of another model: {' '.join(str(error).split())[:200]}") from error
    return bool(average)

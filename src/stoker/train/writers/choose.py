"""A writer by its name, as a configuration gives it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stoker.errors import OptionError
from stoker.train.writers.mlflow import Mlflow
from stoker.train.writers.tensorboard import TensorBoard
from stoker.train.writers.wandb import Wandb
from stoker.train.writers.writer import Writer

_MAKE: dict[str, Callable[[Path], Writer]] = {
    "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
    "wandb": lambda folder: Wandb(name=folder.name, dir=str(folder)),
    "mlflow": lambda folder: Mlflow(name=folder.name),
}
NAMES = tuple(_MAKE)


def make_writer(name: str, *, folder: str | Path) -> Writer:
    """The writer of this name, for the run in a folder."""
    if name not in _MAKE:
        raise OptionError(f"writer is {name!r}; expected {', '.join(repr(one) for one in NAMES)}.")
    return _MAKE[name](Path(folder).absolute())

"""Loggers: where the metrics of a run go, beside metrics.jsonl.

    Writer                                 what a logger can do
    TensorBoard, Wandb, Mlflow, Trackio    imported when one is made, each an extra of stoker
    make_writer                            one of these by its name, as a config gives it

A logger that fails is dropped with a warning (`Log`); it never stops the training.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from stoker.errors import OptionError


class Writer(Protocol):
    """What a logger can do: it gets the metrics of a run as they come.

    Example:
        >>> class Printer:
        ...     def write(self, step, values):
        ...         print(step, values)
        ...     def close(self):
        ...         pass
        >>> Printer().write(50, {"loss": 0.5})
        50 {'loss': 0.5}
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of one step; steps do not go back."""

    def close(self) -> None:
        """Put away what is still held; nothing comes after."""


# Packages that only some need: imported when a writer is made, so that a missing one is known before training starts.


def import_extra(module: str, *, writer: str, extra: str) -> Any:
    """The module, or one line that says how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise OptionError(f"{writer} needs a package that is missing ({error}). Run: pip install 'stoker[{extra}]'") from error


class TensorBoard:
    """Writes scalars for TensorBoard. A resumed run hides what its folder has of the steps that are done again.

    Args:
        folder: Where the event files go.

    Example:
        >>> trainer = stoker.Trainer(model, loss, optimizer, loggers=[TensorBoard("runs/a/events")])  # doctest: +SKIP
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self._module = import_extra("torch.utils.tensorboard", writer="TensorBoard", extra="tensorboard")
        self._events: Any = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Add a point to each curve."""
        if self._events is None:
            # Only now is the first step known: TensorBoard drops what earlier files have from it on.
            self._events = self._module.SummaryWriter(log_dir=str(self.folder), purge_step=step)
        for name, value in values.items():
            self._events.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Write the rest and close the file."""
        if self._events is not None:
            self._events.close()


class Wandb:
    """Logs to a run of Weights & Biases.

    Args:
        options: Those of `wandb.init`: project, name, id, resume, mode, config, …

    Example:
        >>> trainer = stoker.Trainer(model, loss, optimizer, loggers=[Wandb(project="walks")])  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        module = import_extra("wandb", writer="Wandb", extra="wandb")
        self._run = module.init(**options)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


class Trackio:
    """Logs to a run of trackio, which keeps its runs on this machine.

    Args:
        options: Those of `trackio.init`: project, name, resume, config, …

    Example:
        >>> trainer = stoker.Trainer(model, loss, optimizer, loggers=[Trackio(project="walks")])  # doctest: +SKIP
    """

    def __init__(self, **options: Any) -> None:
        self._run = import_extra("trackio", writer="Trackio", extra="trackio").init(**options)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()


_FORBIDDEN = re.compile(r"[^\w\-. :/]", re.ASCII)
"""What MLflow takes in no name of a metric."""


class Mlflow:
    """Logs to a run of MLflow.

    Args:
        experiment: Name of the experiment.
        name: Name of the run.
        tracking_uri: The server; by default that of the environment.
        run_id: Continue this run.

    Example:
        >>> trainer = stoker.Trainer(model, loss, optimizer, loggers=[Mlflow(experiment="walks")])  # doctest: +SKIP
    """

    def __init__(
        self, *, experiment: str | None = None, name: str | None = None, tracking_uri: str | None = None, run_id: str | None = None
    ) -> None:
        self._module = import_extra("mlflow", writer="Mlflow", extra="mlflow")
        try:
            if tracking_uri is not None:
                self._module.set_tracking_uri(tracking_uri)
            if experiment is not None:
                self._module.set_experiment(experiment)
            # Beside whatever run the program may have open itself.
            self.run_id: str = self._module.start_run(
                run_id=run_id, run_name=name, nested=self._module.active_run() is not None
            ).info.run_id
        except Exception as error:  # a server that is not there, a store that this version refuses, a package that is missing
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise OptionError(
                f"Mlflow cannot begin a run: {reason} Run: pip install 'stoker[mlflow]', or let MLFLOW_TRACKING_URI name a store, "
                f"such as sqlite:///mlflow.db or the address of a server."
            ) from error

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        named = {_FORBIDDEN.sub("_", name): value for name, value in values.items()}
        self._module.log_metrics(named, step=step, run_id=self.run_id)

    def close(self) -> None:
        """End the run."""
        active = self._module.active_run()
        if active is not None and active.info.run_id == self.run_id:
            self._module.end_run()


_MAKE: dict[str, Callable[[Path], Writer]] = {
    "tensorboard": lambda folder: TensorBoard(folder / "tensorboard"),
    "trackio": lambda folder: Trackio(project=folder.parent.name or "stoker", name=folder.name),
    "wandb": lambda folder: Wandb(name=folder.name, dir=str(folder)),
    "mlflow": lambda folder: Mlflow(name=folder.name),
}
NAMES = tuple(_MAKE)


def make_writer(name: str, *, folder: str | Path) -> Writer:
    """The writer of this name, for the run in a folder."""
    if name not in _MAKE:
        raise OptionError(f"writer is {name!r}; expected {', '.join(repr(one) for one in NAMES)}.")
    return _MAKE[name](Path(folder).absolute())

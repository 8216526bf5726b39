"""TensorBoard: event files in a folder. Extra `tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stoker.train.writers.extra import import_extra


class TensorBoard:
    """Writes scalars into `folder`; a run that resumes hides what its folder has of the steps that are done again."""

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

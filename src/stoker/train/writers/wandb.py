"""Weights & Biases. Extra `wandb`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stoker.train.writers.extra import import_extra


class Wandb:
    """Logs to a run of Weights & Biases; the options are those of `wandb.init` (project, name, id, resume, mode, config, …)."""

    def __init__(self, **options: Any) -> None:
        module = import_extra("wandb", writer="Wandb", extra="wandb")
        self._run = module.init(**options)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log one step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """Finish the run."""
        self._run.finish()

"""The result of a fit: how it ended, and what was measured on the way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stoker.train.choice import Setup, Trial
from stoker.train.fit import Stopped
from stoker.units import readable_seconds


@dataclass(frozen=True, kw_only=True)
class Result:
    """What `Trainer.fit` returns."""

    stopped: Stopped
    """Why it ended: all epochs are done, early stopping, the time budget, or a signal."""
    step: int
    """Updates done in all."""
    epoch: int
    """Epochs done in all."""
    metrics: dict[str, float]
    """Of the last epoch; those of the validation begin with `val_`."""
    best: float | None
    """The best value of the metric that is watched."""
    best_step: int | None
    skipped: int
    """Updates that the guard skipped."""
    seconds: float
    wait: float
    """Share of the time that was spent waiting for batches, in this call."""
    setup: Setup
    """How steps were done."""
    trials: tuple[Trial, ...]
    """What was tried to find that out."""
    folder: Path | None

    def __str__(self) -> str:
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in self.metrics.items())
        best = f", best {self.best:.4g} at step {self.best_step:,}" if self.best is not None and self.best_step is not None else ""
        return (
            f"{self.stopped} after {self.step:,} steps and {self.epoch:,} epochs in {readable_seconds(self.seconds)}: "
            f"{numbers}{best}; waited for data {self.wait:.1%} of the time"
        )

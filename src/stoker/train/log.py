"""The log of a training: numbers go to all writers, and to the bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from stoker.train.progress import Progress
from stoker.train.writers import Writer, Writers


class Log:
    """Where the numbers of a training go."""

    def __init__(self, writers: Sequence[Writer], bar: Progress) -> None:
        self._writers = Writers(writers)
        self._bar = bar
        self._rate: float | None = None
        self._loss: float | None = None

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Log the numbers of some steps, the last of them `step`."""
        self._rate, self._loss = values.get("rate", self._rate), values.get("loss", self._loss)
        self._writers.write(step, values)

    def draw(self, step: int, row: torch.Tensor | None, *, wait: float, epoch: int) -> None:
        """Show how far the training is."""
        self._bar.update(step, loss=float(row[0]) if row is not None else self._loss, rate=self._rate, wait=wait, epoch=epoch)

    def close(self) -> None:
        """End the bar and all writers."""
        self._bar.close()
        self._writers.close()

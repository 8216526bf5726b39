"""The suspect `between`: the user's code between two steps, such as metrics, prints and histories."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Self

import torch

from stoker.diagnose.experiments.base import Experiment
from stoker.diagnose.hooks import StepHooks
from stoker.diagnose.loops import Sources


class WithoutBetween(Experiment):
    """Statements of the training loop after its update do nothing, as far as the loop can do without them (rewriting.py)."""

    unused_reason = "nothing after the update of the training loop can be skipped"

    def __init__(self, steps: Callable[[], int], sources: Sources) -> None:
        super().__init__(steps)
        self._sources = sources

    @classmethod
    def of(cls, hooks: StepHooks, sources: Sources) -> Self:
        """Return the experiment on the loops of a program."""
        return cls(lambda: hooks.steps, sources)

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        if optimizer is not None:  # else these statements update the weights
            self._sources.skips.append(self._skip)
            self._undo.callback(self._sources.skips.clear)

    def _skip(self, file: str, line: int) -> bool:
        """Whether to skip a statement of the loop at this place: other loops, as that over micro-batches, are parts of a step."""
        training = self._sources.training
        place = training.place if training is not None else None
        if place is None or (place.file, place.line) != (file, line):
            return False
        self.used = True
        return True

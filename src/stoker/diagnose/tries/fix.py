"""A fix: one change of a program, made from outside while it starts or after its first steps, and nothing else.

A trial runs a program with one from the start. Some can also be switched on and off in a program that runs (`inside`): a diagnosis
measures some steps with each, and predicts what it gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

FULL, REDUCED = 1e-3, 5e-2
"""By how much a loss may differ, of its size: where products are in float32, and where they are in a shorter type."""


class Fix:
    """What all fixes have; each one changes what it needs to."""

    tolerance: float | None = FULL
    """None where losses cannot be compared: the program then sees other batches."""
    cuda_only = False
    samples_a_step = 1.0
    """Times those of the program."""
    caches = False
    """Whether the loop gets copies of earlier batches."""
    nothing = "it found nothing to change"
    """Told where the program never came to what is changed."""
    may_fail = False
    """Whether a program may raise an error with it."""
    with_data = False
    """Whether it changes what batches cost, too: then it is not measured on batches that cost nothing."""

    def __init__(self, value: int | None = None) -> None:
        self.value = value
        """How many, where a fix has a number."""
        self.used = False
        self._undo: list[Callable[[], Any]] = []

    def install(self) -> None:
        """Change what is there before the program begins."""

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change what is there after the first steps: the modules that the program calls, and its optimizer."""

    def batch(self, value: Any) -> Any:
        """What the loop gets in place of a batch."""
        return value

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Switch it on in a program that runs; gives the batches that it is to get."""
        self.install()
        self.begin(roots, optimizer)
        return batches

    def remove(self) -> None:
        """All is as before."""
        while self._undo:
            self._undo.pop()()

    def replace(self, owner: Any, name: str, by: Any) -> None:
        """Put something in place of an attribute, until `remove`."""
        inherited, original = name not in vars(owner), getattr(owner, name)
        setattr(owner, name, by)
        # What an object had from its class is not left behind on the object itself; flags of torch are kept elsewhere.
        shadows = inherited and name in vars(owner)
        self._undo.append(lambda: delattr(owner, name) if shadows else setattr(owner, name, original))


class ModuleFix(Fix):
    """A fix of the modules whose call is the forward pass."""

    nothing = "no module with weights is called by the program's own loop"

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change each module that has weights."""
        for module in roots:
            if any(weight.requires_grad for weight in module.parameters()):
                self.change(module)
                self.used = True

    def change(self, module: torch.nn.Module) -> None:
        """Change one module."""
        raise NotImplementedError

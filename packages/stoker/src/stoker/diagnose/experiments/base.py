"""Base classes of suspects and fixes: when one can be used, and how it is switched on and off."""

from __future__ import annotations

import functools
import inspect
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import FrameType
from typing import Any, Self

import torch
from torch.utils.data import DataLoader

from stoker.diagnose.hooks import StepHooks, own_line, replace
from stoker.diagnose.loops import Sources
from stoker.diagnose.measurements import SourceLine
from stoker.diagnose.thresholds import RULE

UPLOADS = ("to", "cuda")
MAX_KEPT_BYTES = 1 << 30  # of tensors that are kept by stale calls: more could exhaust the memory of the GPU


class Fix:
    """Base class: a fix overrides `install`, `begin` or `batch`, whichever it needs."""

    tolerance: float | None = RULE.loss_tolerance
    """Allowed relative difference of losses; None where they cannot be compared because the program sees other batches."""
    cuda_only = False
    samples_per_step = 1.0  # factor on the samples of a step
    caches = False  # whether the loop gets copies of earlier batches: it is measured in trials alone
    unused_reason = "it found nothing to change"  # why `used` is False at the end: the program never came to what is changed
    fits_if_unused = False  # whether the program may gain by it even if it cannot be changed from outside
    may_fail = False  # whether a program may raise an error with it
    with_data = False  # whether it also changes what batches cost: then it is not measured on cached batches
    against_cached = False  # whether steps on cached batches are what it is compared with
    changes_batches = False  # whether it changes cached batches: then it is not measured without them
    lasts = False  # whether it cannot be undone: then it is measured as the last, and switched on once
    starts_slowly = False  # whether its first steps take longer than all else that is measured: they count towards no limit
    queue = 0  # batches that it has prefetched, which say nothing about its speed

    def __init__(self, value: int | None = None) -> None:
        self.value = value  # the number of threads or workers, where a fix has one
        self.used = False
        self._undo = ExitStack()

    def install(self) -> None:
        """Change what exists before the program begins."""

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        """Change what exists after the first steps: modules that the program calls (`roots`), its optimizer, flags that it has set."""

    def batch(self, value: Any) -> Any:
        """Return what the loop gets instead of a batch."""
        return value

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        """Switch it on in a program that runs; return the batches that the program gets."""
        self.install()
        self.begin(roots, optimizer)
        return [self.batch(batch) for batch in batches]

    def remove(self) -> None:
        """Undo every change."""
        self._undo.close()

    def replace(self, owner: Any, name: str, by: Any) -> None:
        """Replace an attribute until `remove`."""
        replace(self._undo, owner, name, by)

    def change_calls(self, owner: type, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the arguments of each call of a method until `remove`: `change` gets them by name."""
        original = getattr(owner, name)
        signature = inspect.signature(original)

        @functools.wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            options = signature.bind(*args, **kwargs).arguments
            change(options)
            return original(**options)

        self.replace(owner, name, changed)


class ModuleFix(Fix, ABC):
    """Base class: calls something else in place of the forward pass of each module with weights."""

    unused_reason = "no module with weights is called by the program's own loop"
    fits_if_unused = True

    def __init__(self, value: int | None = None) -> None:
        super().__init__(value)
        self._forwards: dict[int, Callable[..., Any]] = {}  # by the id of a module: so that each is compiled or captured once

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        for module in roots:
            if any(weight.requires_grad for weight in module.parameters()):
                if id(module) not in self._forwards:
                    self._forwards[id(module)] = self._forward_of(module)
                self.replace(module, "forward", self._forwards[id(module)])
                self.used = True

    @abstractmethod
    def _forward_of(self, module: torch.nn.Module) -> Callable[..., Any]:
        """Return what is called in place of the forward method of a module."""


class LoaderFix(Fix, ABC):
    """Base class: changes the arguments of every DataLoader that the program makes."""

    unused_reason = "the program makes no DataLoader"

    def install(self) -> None:
        self.change_calls(DataLoader, "__init__", self._change)

    @abstractmethod
    def _change(self, options: dict[str, Any]) -> None:
        """Change the arguments of one loader in place and set `used`, or leave them and set `unused_reason`."""


class Experiment(Fix):
    """Base class: removes a suspect. `steps` returns the number of the current step."""

    with_data = True  # on the program's own batches
    may_fail = True  # a stale value may not fit the program
    keeps_compiled_code = True  # whether torch need not compile again what depends on the things that are replaced

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__()
        self._steps = steps

    @classmethod
    def of(cls, hooks: StepHooks, sources: Sources) -> Self:
        """Return the experiment on a program."""
        return cls(lambda: hooks.steps)


class StaleCalls(Experiment):
    """Base class: methods of tensors return what the same call returned one step before.

    A call is the same if it is the n-th one of its step, is made by the same instruction, and has a tensor of the same shape and type.
    What a program cannot do without is kept: calls whose result has a shape that depends on the data (`nonzero`, `unique`) are made.
    """

    cuda_only = True
    methods: tuple[str, ...] = ()
    device = "cpu"  # of the tensors whose calls are removed, if the result is elsewhere

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__(steps)
        self._calls: list[tuple[tuple[Any, ...], Any]] = []  # of a step, in their order, with their results
        self._next = 0
        self._step = -1
        self._kept_bytes = 0
        self.places: Counter[SourceLine | None] = Counter()  # calls of a step by the user's line

    def install(self) -> None:
        self.places.clear()
        self._kept_bytes = 0
        self._undo.callback(self._calls.clear)
        for name in self.methods:
            self.replace(torch.Tensor, name, self._stale(name, getattr(torch.Tensor, name)))

    def _stale(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # The gradient of a copy goes to the tensor of this step.
            if tensor.device.type != self.device or (name in UPLOADS and tensor.requires_grad and torch.is_grad_enabled()):
                return original(tensor, *args, **kwargs)
            make = functools.partial(original, tensor, *args, **kwargs)
            return self.stale_or_new(make, sys._getframe(1), tensor.shape, tensor.dtype)

        return call

    def stale_or_new(self, make: Callable[[], Any], caller: FrameType, *arguments: Any) -> Any:
        """Return the result of the same call one step before; if the program makes another one, make it and keep its result."""
        if (step := self._steps()) != self._step:
            self._step, self._next = step, 0
        number, call = self._next, (caller.f_code, caller.f_lasti, *arguments)
        if number < len(self._calls) and self._calls[number][0] == call:
            self._next += 1
            return self._calls[number][1]
        result = make()
        if isinstance(result, torch.Tensor) and result.device.type == self.device:
            return result  # no copy to or from the GPU: such calls, as `.to(dtype)`, are not counted
        if number < len(self._calls):
            self.places.clear()
            del self._calls[number:]  # the program has taken another way: from here on calls are made, and kept again
            self._kept_bytes = sum(_bytes_of(kept) for _, kept in self._calls)
        self._next += 1
        if number == len(self._calls) and self._kept_bytes + _bytes_of(result) <= MAX_KEPT_BYTES:
            self._kept_bytes += _bytes_of(result)
            self._calls.append((call, result))
            self.places[own_line(caller)] += 1
            self.used = True
        return result


def _bytes_of(result: Any) -> int:
    return result.nbytes if isinstance(result, torch.Tensor) else 0

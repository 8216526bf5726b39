"""Whose code a line is: the user's own, or that of Python, installed packages and stoker itself. Blame falls on the user's."""

from __future__ import annotations

import copy
import dataclasses
import functools
import os
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import stoker
from stoker._clock import now_ns
from stoker.diagnose.measurements import SourceLine

INSTALLED = ("site-packages", "dist-packages")
_FOREIGN = tuple(
    str(Path(folder).resolve()) + os.sep
    for folder in {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), str(Path(stoker.__file__).parent)}
)


@functools.cache
def is_own(file: str) -> bool:
    """Whether a file of code is the user's."""
    if not file.endswith(".py"):
        return "ipykernel" in file or file.startswith("<ipython-input")  # the cells of a notebook
    path = os.path.realpath(file)
    return not path.startswith(_FOREIGN) and not any(part in INSTALLED for part in Path(path).parts)


def own_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame of the user's code, from the innermost outwards."""
    while frame is not None and not is_own(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def place_of(frame: FrameType) -> SourceLine:
    """Where a frame stands."""
    return SourceLine(
        file=shown(frame.f_code.co_filename), line=frame.f_lineno or frame.f_code.co_firstlineno, function=frame.f_code.co_qualname
    )


@functools.cache
def shown(file: str) -> str:
    """A path as the user would write it: from the current folder, where the file is below it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else file


# Boundaries: where the phases of a training step begin and end, told by hooks that cost about a microsecond each.
#
# They stand between the user's program, which knows nothing of them, and the session, which takes the times of a step when it has
# ended. The law: a hook reads the clock and adds; it never waits, never copies, never touches what the user computes.

NEXT, PREPARE, FORWARD, BACKWARD, OPTIMIZER, REST = range(6)
NAMES = ("next", "prepare", "forward", "backward", "optimizer", "rest")
CLOSURE_RANGE = "stoker.closure"
"""In profiles, around what an optimizer calls within its step."""
MAX_ROOTS = 8
MAX_LOSSES = 64


class Times(NamedTuple):
    """One step."""

    phases_ns: tuple[int, ...]
    broken: bool
    """An epoch ended within it."""
    between_ns: int = 0
    """Of it, from there to the begin of the next epoch."""

    @property
    def seconds(self) -> float:
        """All of it."""
        return sum(self.phases_ns) / 1e9

    @property
    def without_data(self) -> float:
        """All but the wait for a batch."""
        return (sum(self.phases_ns) - self.phases_ns[NEXT]) / 1e9


class Boundaries:
    """The phases of the step that runs now."""

    def __init__(self) -> None:
        self.phase = REST
        self.steps = 0
        """Optimizer steps so far."""
        self.stepped = False
        """Whether there was one since `take`."""
        self.broken = False
        self.between_ns = 0
        self.silent = False
        """Whether nothing is listened to but the turns of the loop."""
        self.optimizer: Optimizer | None = None
        self.precision: str | None = None
        self.losses: list[torch.Tensor] = []
        self.on_edge: Callable[[int], None] | None = None
        """Called with the phase that begins; for events on a device."""
        self.on_step: Callable[[], None] | None = None
        """Called when an optimizer's step has ended."""
        self.on_backward: Callable[[], None] | None = None
        """Called when a backward pass begins."""
        self._last_ns = now_ns()
        self._totals = [0] * len(NAMES)
        self._roots: list[torch.nn.Module] = []
        self._depth = 0
        self._after_backward = REST
        self._undo: list[Callable[[], Any]] = []
        self._unsee: Callable[[], Any] | None = None

    # ---- the clock of a step ----

    def switch(self, phase: int) -> None:
        """End the phase that runs, and begin another."""
        now = now_ns()
        self._totals[self.phase] += now - self._last_ns
        self._last_ns = now
        self.phase = phase
        if self.on_edge is not None:
            self.on_edge(phase)

    def take(self) -> Times:
        """The step that ends here. What happens until `resume` belongs to none."""
        now = now_ns()
        self._totals[self.phase] += now - self._last_ns
        times = Times(tuple(self._totals), self.broken, self.between_ns)
        self._totals = [0] * len(NAMES)
        self._last_ns = now
        self.stepped = self.broken = False
        self.between_ns = 0
        return times

    def resume(self) -> None:
        """Leave out the time since the last edge."""
        self._last_ns = now_ns()

    # ---- hooks ----

    def install(self) -> None:
        """Begin to listen."""
        before = register_optimizer_step_pre_hook(self._before_step)
        after = register_optimizer_step_post_hook(self._after_step)
        self._undo += [before.remove, after.remove]
        self._wrap_backward()
        self._wrap(torch.autograd, "grad", BACKWARD)
        self._wrap(torch.nn.utils, "clip_grad_norm_", OPTIMIZER)
        self._wrap(torch.nn.utils, "clip_grad_value_", OPTIMIZER)
        self._wrap(Optimizer, "zero_grad", OPTIMIZER)
        self._wrap(torch.nn.Module, "zero_grad", OPTIMIZER)

    def remove(self) -> None:
        """Listen no more: torch is as it was."""
        while self._undo:
            self._undo.pop()()
        self._roots.clear()

    def silence(self) -> None:
        """Listen to nothing, until `listen`: a few hooks a step cost next to nothing by themselves, but 30 µs after operations
        that have taken the caches (benchmarks/bench_hooks.py)."""
        while self._undo:
            self._undo.pop()()
        self.silent = True

    def listen(self) -> None:
        """Tell phases apart again."""
        if self.silent:
            self.silent = False
            self.install()
            self._hook_roots()

    def _wrap(self, owner: Any, name: str, phase: int) -> None:
        """Give the time of a function to a phase."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            outer = self.phase
            if outer == phase:  # called by one that is timed already
                return original(*args, **kwargs)
            self.switch(phase)
            try:
                return original(*args, **kwargs)
            finally:
                self.switch(outer)

        self._replace(owner, name, timed)

    def _wrap_backward(self) -> None:
        original = torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if self.on_backward is not None:
                self.on_backward()
            self._see_loss(tensors)
            self.switch(BACKWARD)
            try:
                original(tensors, *args, **kwargs)
            finally:
                self.switch(self._after_backward)

        self._replace(torch.autograd, "backward", backward)

    def _replace(self, owner: Any, name: str, by: Any) -> None:
        original = getattr(owner, name)
        setattr(owner, name, by)
        self._undo.append(lambda: setattr(owner, name, original))

    def _see_loss(self, tensors: Any) -> None:
        if len(self.losses) < MAX_LOSSES and isinstance(tensors, torch.Tensor) and tensors.numel() == 1:
            self.losses.append(tensors.detach().clone())  # a graph writes the next one to the same place

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Torch gives the step what is returned here."""
        self._after_backward = OPTIMIZER
        self.switch(OPTIMIZER)
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._timed_closure(args[1]), *args[2:]), kwargs
        if callable(closure := kwargs.get("closure")):
            return args, {**kwargs, "closure": self._timed_closure(closure)}
        return None

    def _timed_closure(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """An optimizer that is given a closure has the forward and backward pass run within its own step: they are not its work."""

        @functools.wraps(closure)
        def timed(*args: Any, **kwargs: Any) -> Any:
            profiled = torch._C._autograd._profiler_enabled()
            with torch.autograd.profiler.record_function(CLOSURE_RANGE) if profiled else nullcontext():
                self._after_backward = REST
                self.switch(FORWARD)
                try:
                    return closure(*args, **kwargs)
                finally:
                    self._after_backward = OPTIMIZER
                    self.switch(OPTIMIZER)

        return timed

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self._after_backward = REST
        self.switch(REST)
        self.optimizer = optimizer
        self.steps += 1
        self.stepped = True
        if self.on_step is not None:
            self.on_step()

    # ---- the modules whose call is the forward pass ----

    def find_roots(self) -> None:
        """Look for the modules that are called from outside of any other, until `keep_roots`.

        A hook on every module would cost more than many a step. So all are watched for a step or two of the warm-up, and later the
        outermost alone. Where torch compiles, nothing is watched that it would have to trace: compiled modules are outermost.
        """
        if compiled():
            self._roots = _all_compiled()[:MAX_ROOTS]
            return
        original = torch.nn.Module.__call__

        def seen(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                self._see_root(module)
            self._depth += 1
            try:
                return original(module, *args, **kwargs)
            finally:
                self._depth -= 1

        self._replace(torch.nn.Module, "__call__", seen)
        self._unsee = self._undo[-1]

    def keep_roots(self) -> None:
        """Watch the modules that were found, and no others."""
        if self._unsee is not None:
            self._unsee()
            self._undo.remove(self._unsee)
            self._unsee = None
        self._hook_roots()

    def _hook_roots(self) -> None:
        for module in self._roots:
            self._undo.append(module.register_forward_pre_hook(self._before_forward).remove)

    def _see_root(self, module: torch.nn.Module) -> None:
        if len(self._roots) < MAX_ROOTS and not any(module is one for one in self._roots):
            self._roots.append(module)
        if self.precision is None:
            self.precision = precision_of(module)
        self._before_forward(module, ())

    def _before_forward(self, module: torch.nn.Module, args: Any) -> None:
        phase = self.phase
        # A call without gradients after a step is a look at the model, not its training.
        if phase == PREPARE or (phase in (REST, OPTIMIZER) and torch.is_grad_enabled()):
            self.switch(FORWARD)

    @property
    def roots(self) -> list[torch.nn.Module]:
        """The modules that are watched."""
        return self._roots

    @property
    def finds_forward(self) -> bool:
        """Whether it is known where the forward pass begins."""
        return bool(self._roots)


def compiled() -> bool:
    """Whether torch has compiled anything in this process."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and dynamo.counters["frames"]["total"] > 0


def _all_compiled() -> list[torch.nn.Module]:
    import gc

    kind = sys.modules["torch._dynamo.eval_frame"].OptimizedModule
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]  # proxies have a __class__ that may raise


def precision_of(module: torch.nn.Module) -> str:
    """In which type the products of a module are computed here: that of autocast, or of its weights."""
    names = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}
    weight = next((one for one in module.parameters() if one.is_floating_point()), None)
    kind = weight.device.type if weight is not None else "cpu"
    if torch.is_autocast_enabled(kind):
        return names.get(torch.get_autocast_dtype(kind), "fp32")
    name = names.get(weight.dtype, "fp32") if weight is not None else "fp32"
    if name == "fp32" and kind == "cuda" and torch.backends.cuda.matmul.allow_tf32:
        return "tf32"
    return name


# Copies of batches, whatever they are made of: tensors and arrays anew, what holds them in the same form around.

MAX_DEPTH = 6
Leaf = torch.Tensor | np.ndarray


def leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors and arrays within a value."""
    if isinstance(value, torch.Tensor | np.ndarray):
        yield value
    elif depth < MAX_DEPTH:
        for part in _parts(value):
            yield from leaves(part, depth + 1)


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    elif not isinstance(value, str | bytes | int | float | type) and hasattr(value, "__dict__"):
        yield from vars(value).values()


def num_bytes(value: Any) -> int:
    """Bytes of all tensors and arrays within."""
    return sum(one.nbytes for one in leaves(value))


def num_rows(value: Any) -> int | None:
    """The first dimension of the first tensor or array."""
    return next((int(one.shape[0]) for one in leaves(value) if one.ndim), None)


def copied(value: Any, depth: int = 0, *, tensors: bool = True) -> Any:
    """The same batch in memory of its own; without `tensors` only what holds them is new.

    Pinned tensors and those on a device are not copied: that would cost, or hide, the very copy that is looked for.
    """
    if isinstance(value, torch.Tensor):
        return value if not tensors or value.device.type != "cpu" or value.is_pinned() else value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy() if tensors else value
    if depth >= MAX_DEPTH:
        return value
    if isinstance(value, tuple):
        parts = [copied(one, depth + 1, tensors=tensors) for one in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, list):
        return [copied(one, depth + 1, tensors=tensors) for one in value]
    if isinstance(value, dict):
        same = copy.copy(value)
        for key, one in value.items():
            same[key] = copied(one, depth + 1, tensors=tensors)
        return same
    if (dataclasses.is_dataclass(value) or isinstance(value, Mapping)) and hasattr(value, "__dict__"):
        return _copied_holder(value, depth, tensors)
    return value


def _copied_holder(value: Any, depth: int, tensors: bool) -> Any:
    same = copy.copy(value)
    same.__dict__.update({key: copied(one, depth + 1, tensors=tensors) for key, one in vars(value).items()})
    return same

"""Experiments: remove one suspect from the steps of a running program, and see what it gained.

An experiment is switched on for some windows of steps and off again, in turn with unchanged windows (`fix_gain` of windows.py).
Its result is not that of the training: steps get stale values, which take no time. `EXPERIMENTS` is the registry. To add one, write a
class here, add a row there, and its words to `REMOVALS` of wording.py. division.py divides a step by what was saved.

- `copies`: an upload returns the tensor that the same call uploaded one step before.
- `reads`: a value that is read back from the GPU is that of the same call one step before, without a wait.
- `callbacks`: callbacks, loggers and progress bars of frameworks, and forward hooks of the user, are skipped.
- `everything`: all of these, on cached batches.

What a program cannot do without is kept: calls whose result has a shape that depends on the data (`nonzero`, `unique`) are made.
"""

from __future__ import annotations

import functools
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from stoker.diagnose.fixes import Fix
from stoker.diagnose.hooks import compiled, own_line
from stoker.diagnose.measurements import SourceLine, Sync

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
UPLOADS = ("to", "cuda")
MAX_KEPT_BYTES = 1 << 30  # of uploaded tensors that are kept: more could exhaust the memory of the GPU
FRAMEWORKS = (
    ("lightning.pytorch.trainer.call", None, ("_call_callback_hooks",)),
    ("pytorch_lightning.trainer.call", None, ("_call_callback_hooks",)),
    ("lightning.pytorch", "LightningModule", ("log", "log_dict")),
    ("pytorch_lightning", "LightningModule", ("log", "log_dict")),
    ("accelerate", "Accelerator", ("log",)),
    ("tqdm.std", "tqdm", ("update", "set_postfix", "set_postfix_str", "set_description", "refresh")),
    ("torch.utils.tensorboard.writer", "SummaryWriter", ("add_scalar", "add_scalars", "add_histogram", "add_text", "flush")),
    ("wandb.sdk.wandb_run", "Run", ("log",)),
)
"""Module, class (None: a function of the module) and names of what may be skipped: nothing that decides what a loop does next."""
CALLERS = (
    ("transformers.trainer_callback", "CallbackHandler", "call_event"),
    ("lightning.pytorch.trainer.call", None, "_call_lightning_module_hook"),
    ("pytorch_lightning.trainer.call", None, "_call_lightning_module_hook"),
)
"""What calls the user's code by the name of an event."""
EVENTS = ("on_step_begin", "on_step_end", "on_substep_end", "on_log", "on_train_batch_start", "on_train_batch_end")
"""Events of a step. What comes between epochs is not among them."""
FLOW = "DefaultFlowCallback"  # of transformers: it decides what the loop does next


class Experiment(Fix):
    """Base class. `steps` returns the number of the current step."""

    with_data = True  # on the program's own batches
    may_fail = True  # a stale value may not fit the program
    keeps_compiled_code = True  # whether torch need not compile again what depends on the things that are replaced

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__()
        self._steps = steps


class StaleCall(NamedTuple):
    """A call of the step before, and its result."""

    code: CodeType
    instruction: int  # of the caller
    shape: Any
    dtype: torch.dtype | None
    result: Any


class StaleCalls(Experiment):
    """Base class: methods of tensors return what the same call returned one step before.

    A call is the same if it is the n-th one of its step, is made by the same instruction, and has a tensor of the same shape and type.
    """

    cuda_only = True
    methods: tuple[str, ...] = ()
    device = "cpu"  # of the tensors whose calls are removed, if the result is elsewhere

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__(steps)
        self._calls: list[StaleCall] = []  # of a step, in their order
        self._next = 0
        self._step = -1
        self._kept_bytes = 0
        self.places: Counter[SourceLine | None] = Counter()  # calls of a step by the user's line

    def install(self) -> None:
        self.places.clear()
        self._undo.callback(self._calls.clear)
        for name in self.methods:
            self.replace(torch.Tensor, name, self._stale(name, getattr(torch.Tensor, name)))

    def _stale(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        uploads = name in UPLOADS

        @functools.wraps(original)
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # The gradient of a copy goes to the tensor of this step.
            if tensor.device.type != self.device or (uploads and tensor.requires_grad and torch.is_grad_enabled()):
                return original(tensor, *args, **kwargs)
            frame = sys._getframe(1)
            known = self._same_call(frame, tensor.shape, tensor.dtype)
            if known is not None:
                return known.result
            result = original(tensor, *args, **kwargs)
            if isinstance(result, torch.Tensor) and result.device.type == self.device:
                self._next -= 1  # no copy to or from the GPU
            else:
                self._keep(StaleCall(frame.f_code, frame.f_lasti, tensor.shape, tensor.dtype, result))
            return result

        return call

    def _same_call(self, frame: FrameType, shape: Any, dtype: torch.dtype | None) -> StaleCall | None:
        """Return the same call of the step before; None if the program makes another one."""
        if (step := self._steps()) != self._step:
            self._step, self._next = step, 0
        number = self._next
        self._next += 1
        if number >= len(self._calls):
            return None
        known = self._calls[number]
        if known.code is frame.f_code and known.instruction == frame.f_lasti and known.shape == shape and known.dtype is dtype:
            return known
        self.places.clear()
        del self._calls[number:]  # the program has taken another way: from here on calls are made, and kept again
        return None

    def _keep(self, call: StaleCall) -> None:
        size = call.result.nbytes if isinstance(call.result, torch.Tensor) else 0
        if self._next == len(self._calls) + 1 and self._kept_bytes + size <= MAX_KEPT_BYTES:
            self._kept_bytes += size
            self._calls.append(call)
            self.places[own_line(sys._getframe(2))] += 1
            self.used = True


class WithoutCopies(StaleCalls):
    """Uploads to the GPU take no time."""

    methods = UPLOADS
    unused_reason = "the loop uploads nothing"

    def install(self) -> None:
        super().install()
        copy = torch.Tensor.copy_

        @functools.wraps(copy)
        def stale_copy(target: torch.Tensor, source: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
            if target.device.type == "cpu" or source.device.type != "cpu" or source.requires_grad or not source.ndim:
                return copy(target, source, *args, **kwargs)
            self.used = True
            return target  # what was copied there before

        self.replace(torch.Tensor, "copy_", stale_copy)
        for name in ("tensor", "as_tensor"):
            self.replace(torch, name, self._stale_maker(getattr(torch, name)))

    def _stale_maker(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def made(data: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
            is_upload = device is not None and torch.device(device).type != "cpu"
            if not is_upload or (isinstance(data, torch.Tensor) and data.device.type != "cpu"):
                return original(data, *args, device=device, **kwargs)
            frame, length = sys._getframe(1), len(data) if hasattr(data, "__len__") else None
            known = self._same_call(frame, length, None)
            if known is not None:
                return known.result
            result = original(data, *args, device=device, **kwargs)
            self._keep(StaleCall(frame.f_code, frame.f_lasti, length, None, result))
            return result

        return made


class WithoutReads(StaleCalls):
    """Values that are read back from the GPU are there already: the host does not wait for them."""

    methods = (*READS, "to")
    device = "cuda"
    unused_reason = "the loop reads no value of the GPU"

    def lines(self) -> list[Sync]:
        """Return the user's lines that read values of the GPU, with the number of reads per step, the most frequent first."""
        return [Sync(place=place, count=float(number)) for place, number in self.places.most_common()]

    def install(self) -> None:
        super().install()
        self.replace(torch.cuda, "synchronize", self._no_wait)

    def _no_wait(self, *args: Any, **kwargs: Any) -> None:
        self.used = True


class WithoutCallbacks(Experiment):
    """Callbacks, loggers and progress bars of frameworks, and forward hooks of the user, do nothing."""

    unused_reason = "the program has no callbacks, loggers, progress bars or forward hooks"
    keeps_compiled_code = False

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        for module, kind, names in FRAMEWORKS:
            for name in names:
                self._replace(module, kind, name, self._skipped)
        for module, kind, name in CALLERS:
            self._replace(module, kind, name, self._without_events)
        for part in (part for root in roots for part in root.modules()):
            hooks = dict(part._forward_hooks)
            if hooks:
                self.used = True
                part._forward_hooks.clear()
                self._undo.callback(part._forward_hooks.update, hooks)

    def _replace(self, module: str, kind: str | None, name: str, by: Callable[[Any], Any]) -> None:
        owner: Any = sys.modules.get(module)
        owner = getattr(owner, kind, None) if kind is not None else owner
        if owner is not None and hasattr(owner, name):
            self.replace(owner, name, by(getattr(owner, name)))

    def _skipped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def skipped(*args: Any, **kwargs: Any) -> None:
            self.used = True

        return skipped

    def _without_events(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def called(handler: Any, event: str, *args: Any, **kwargs: Any) -> Any:
            if event not in EVENTS:
                return original(handler, event, *args, **kwargs)
            self.used = True
            if not hasattr(handler, "callbacks") or "CallbackHandler" not in type(handler).__name__:
                return None
            all_of_them, handler.callbacks = handler.callbacks, [one for one in handler.callbacks if type(one).__name__ == FLOW]
            try:
                return original(handler, event, *args, **kwargs)  # the control of the loop
            finally:
                handler.callbacks = all_of_them

        return called


class WithoutAll(Experiment):
    """All suspects are removed together, on cached batches: what is left is the step itself."""

    cuda_only = True  # elsewhere, cached batches and callbacks are all
    with_data = False
    unused_reason = "there is nothing to remove"

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__(steps)
        kinds = (WithoutCallbacks, WithoutCopies, WithoutReads)
        self._parts = [kind(steps) for kind in kinds if kind.keeps_compiled_code or not compiled()]

    def on(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None, batches: list[Any]) -> list[Any]:
        for part in self._parts:
            self._undo.callback(part.remove)
            part.on(roots, optimizer, batches)
        self.used = True  # cached batches alone remove the data
        return batches


EXPERIMENTS: dict[str, type[Experiment]] = {
    "everything": WithoutAll,
    "callbacks": WithoutCallbacks,
    "reads": WithoutReads,
    "copies": WithoutCopies,
}
"""All experiments, in the order in which they are made: where removing everything gains nothing, no other one is made."""

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
from typing import Any

import torch

from stoker.diagnose.fixes import Fix
from stoker.diagnose.hooks import compiled, own_line
from stoker.diagnose.measurements import SourceLine, Sync

READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
UPLOADS = ("to", "cuda")
MAX_KEPT_BYTES = 1 << 30  # of uploaded tensors that are kept: more could exhaust the memory of the GPU
FRAMEWORKS = (
    ("transformers.trainer_callback", "CallbackHandler", ("on_step_begin", "on_substep_end", "on_log")),
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


class Experiment(Fix):
    """Base class. `steps` returns the number of the current step."""

    with_data = True  # on the program's own batches
    may_fail = True  # a stale value may not fit the program
    keeps_compiled_code = True  # whether torch need not compile again what depends on the things that are replaced

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__()
        self._steps = steps


class StaleCalls(Experiment):
    """Base class: methods of tensors return what the same call returned one step before.

    A call is the same if it is at the same line, is the n-th one of that line in its step, and has a tensor of the same shape and type.
    """

    cuda_only = True
    methods: tuple[str, ...] = ()
    device = "cpu"  # of the tensors whose calls are removed, if the result is elsewhere

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__(steps)
        self._results: dict[Any, Any] = {}
        self._calls: Counter[Any] = Counter()  # calls in the current step, by line
        self._step = -1
        self._kept_bytes = 0

    def install(self) -> None:
        self._undo.callback(self._results.clear)
        for name in self.methods:
            self.replace(torch.Tensor, name, self._stale(name, getattr(torch.Tensor, name)))

    def _stale(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            # The gradient of a copy goes to the tensor of this step.
            if tensor.device.type != self.device or (tensor.requires_grad and torch.is_grad_enabled() and name in UPLOADS):
                return original(tensor, *args, **kwargs)
            key = self._key(name, tensor)
            if key in self._results:
                return self._results[key]
            result = original(tensor, *args, **kwargs)
            if not isinstance(result, torch.Tensor) or result.device.type != self.device:
                self._keep(key, result)
            return result

        return call

    def _key(self, name: str, tensor: torch.Tensor) -> Any:
        step = self._steps()
        if step != self._step:
            self._step = step
            self._calls.clear()
        frame = sys._getframe(2)
        line = (frame.f_code, frame.f_lineno, name)
        self._calls[line] += 1
        return (*line, self._calls[line], tensor.shape, tensor.dtype)

    def _keep(self, key: Any, result: Any) -> None:
        size = result.nbytes if isinstance(result, torch.Tensor) else 0
        if self._kept_bytes + size <= MAX_KEPT_BYTES:
            self._kept_bytes += size
            self._results[key] = result
            self.used = True


class WithoutCopies(StaleCalls):
    """Uploads to the GPU take no time."""

    methods = UPLOADS
    unused_reason = "the loop uploads nothing"


class WithoutReads(StaleCalls):
    """Values that are read back from the GPU are there already: the host does not wait for them."""

    methods = (*READS, "to")
    device = "cuda"
    unused_reason = "the loop reads no value of the GPU"

    def __init__(self, steps: Callable[[], int]) -> None:
        super().__init__(steps)
        self._places: dict[Any, SourceLine | None] = {}

    def _keep(self, key: Any, result: Any) -> None:
        super()._keep(key, result)
        self._places[key[:4]] = own_line(sys._getframe(2))

    def lines(self) -> list[Sync]:
        """Return the user's lines that read values of the GPU, with the number of reads per step, the most frequent first."""
        counts = Counter(self._places.values())
        return [Sync(place=place, count=float(number)) for place, number in counts.most_common()]


class WithoutCallbacks(Experiment):
    """Callbacks, loggers and progress bars of frameworks, and forward hooks of the user, do nothing."""

    unused_reason = "the program has no callbacks, loggers, progress bars or forward hooks"
    keeps_compiled_code = False

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        for module_name, kind, names in FRAMEWORKS:
            owner: Any = sys.modules.get(module_name)
            if owner is not None and kind is not None:
                owner = getattr(owner, kind, None)
            for name in names:
                if owner is not None and hasattr(owner, name):
                    self.replace(owner, name, self._skipped(getattr(owner, name)))
        for module in (part for root in roots for part in root.modules()):
            hooks = dict(module._forward_hooks)
            if hooks:
                self.used = True
                module._forward_hooks.clear()
                self._undo.callback(module._forward_hooks.update, hooks)

    def _skipped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def skipped(*args: Any, **kwargs: Any) -> Any:
            self.used = True
            # Events of the Hugging Face Trainer (handler, arguments, state, control) return the control of its loop, which is kept.
            return args[3] if original.__qualname__.startswith("CallbackHandler") else None

        return skipped


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
    "callbacks": WithoutCallbacks,
    "copies": WithoutCopies,
    "reads": WithoutReads,
    "everything": WithoutAll,
}
"""All experiments, in the order in which they are made: the safest first, as a program that a stale value breaks is run again."""

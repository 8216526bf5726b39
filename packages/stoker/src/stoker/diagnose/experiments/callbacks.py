"""The suspect `callbacks`: callbacks, loggers and progress bars of frameworks, and forward hooks of the user."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from stoker.diagnose.experiments.base import Experiment

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
    ("transformers.trainer_callback", "CallbackHandler", ("call_event",)),
    ("lightning.pytorch.trainer.call", None, ("_call_lightning_module_hook",)),
    ("pytorch_lightning.trainer.call", None, ("_call_lightning_module_hook",)),
)
"""What calls the user's code by the name of an event."""
EVENTS = ("on_step_begin", "on_step_end", "on_substep_end", "on_log", "on_train_batch_start", "on_train_batch_end")
"""Events of a step. What comes between epochs is not among them."""
FLOW = "DefaultFlowCallback"  # of transformers: it decides what the loop does next


class WithoutCallbacks(Experiment):
    """Callbacks, loggers and progress bars of frameworks, and forward hooks of the user, do nothing."""

    unused_reason = "the program has no callbacks, loggers, progress bars or forward hooks"
    keeps_compiled_code = False

    def begin(self, roots: Sequence[torch.nn.Module], optimizer: torch.optim.Optimizer | None) -> None:
        rows = [*((row, self._skipped) for row in FRAMEWORKS), *((row, self._without_events) for row in CALLERS)]
        for (module, kind, names), changed in rows:
            owner: Any = sys.modules.get(module)
            owner = getattr(owner, kind, None) if kind is not None else owner
            for name in names:
                if hasattr(owner, name):
                    self.replace(owner, name, changed(getattr(owner, name)))
        for part in (part for root in roots for part in root.modules()):
            if hooks := dict(part._forward_hooks):
                self.used = True
                part._forward_hooks.clear()
                self._undo.callback(part._forward_hooks.update, hooks)

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
            callbacks = handler.callbacks
            handler.callbacks = [callback for callback in callbacks if type(callback).__name__ == FLOW]
            try:
                return original(handler, event, *args, **kwargs)  # the control of the loop
            finally:
                handler.callbacks = callbacks

        return called

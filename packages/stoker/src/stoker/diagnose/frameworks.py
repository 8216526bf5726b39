"""The switches of frameworks that run the training loop: which argument of which call is what each fix does.

`SWITCHES` is the table. Advice words a fix by `switch_sentence`, and `stoker diagnose --apply` edits the call where it stands. Where a
framework has no switch for a fix, such as a fused optimizer made in `configure_optimizers`, the fix is the same as in a plain loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import NamedTuple

LOOPS: dict[str, tuple[str, ...]] = {
    "transformers": ("transformers.trainer",),
    "lightning": ("pytorch_lightning.", "lightning."),
    "accelerate": ("accelerate.",),
}
"""Modules with the loop or the optimizer step of each framework. The first match counts: the Trainer of transformers uses Accelerate."""
CLASSES = {
    "transformers.training_args": "TrainingArguments",
    "pytorch_lightning.trainer.trainer": "Trainer",
    "lightning.pytorch.trainer.trainer": "Trainer",
    "accelerate.accelerator": "Accelerator",
}
"""The classes whose calls have the switches, by the module that defines them."""
FEWER_LOGS = "500"  # steps from one log to the next


class Switch(NamedTuple):
    """An argument of a call; in `value`, `{value}` stands for the number of a fix."""

    callable: str
    keyword: str
    value: str
    reason: str = ""  # what it has to do with the cause, where the name does not say it


def _loader(keyword: str, value: str) -> dict[str, Switch]:
    """The argument of a DataLoader: the user makes it for Lightning and Accelerate, and transformers makes it from its arguments."""
    loader = Switch("DataLoader", keyword, value)
    return {"transformers": Switch("TrainingArguments", f"dataloader_{keyword}", value), "lightning": loader, "accelerate": loader}


SWITCHES: dict[str, dict[str, Switch]] = {
    "workers": _loader("num_workers", "{value}"),
    "persistent": _loader("persistent_workers", "True"),
    "pinned": _loader("pin_memory", "True"),
    "fused": {"transformers": Switch("TrainingArguments", "optim", '"adamw_torch_fused"')},
    "autocast": {
        "transformers": Switch("TrainingArguments", "bf16", "True"),
        "lightning": Switch("Trainer", "precision", '"bf16-mixed"'),
        "accelerate": Switch("Accelerator", "mixed_precision", '"bf16"'),
    },
    "tf32": {"transformers": Switch("TrainingArguments", "tf32", "True")},
    "compile": {"transformers": Switch("TrainingArguments", "torch_compile", "True")},
    "reads": {
        "transformers": Switch(
            "TrainingArguments", "logging_nan_inf_filter", "False", "the filter reads the loss of each step to look for NaN"
        ),
        "lightning": Switch("Trainer", "enable_progress_bar", "False", "the bar reads the values that it shows"),
    },
    "callbacks": {
        "transformers": Switch("TrainingArguments", "logging_steps", FEWER_LOGS, "each log reads values and calls the callbacks"),
        "lightning": Switch("Trainer", "log_every_n_steps", FEWER_LOGS, "each log reads values and calls the loggers"),
    },
}
"""By the name of a fix, and the framework."""


def framework_of(stack: Iterable[FrameType]) -> str | None:
    """Return the framework that runs the loop, from the frames around a batch or an optimizer step; None for a plain loop."""
    modules = [str(frame.f_globals.get("__name__", "")) for frame in stack]
    return next((name for name, loops in LOOPS.items() if any(module.startswith(loops) for module in modules)), None)


def switch_sentence(framework: str | None, fix: str, value: int | None = None) -> str | None:
    """Return the words of a fix in a framework, such as `TrainingArguments(dataloader_num_workers=2)`; None if it has no switch."""
    switch = SWITCHES.get(fix, {}).get(framework or "")
    if switch is None:
        return None
    words = f"{switch.callable}({switch.keyword}={switch.value.format(value=2 if value is None else value)})"
    return f"{words}: {switch.reason}" if switch.reason else words

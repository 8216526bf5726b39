"""The settings of a training run, and what they apply to.

`TrainerSettings` holds the options of a `Trainer` that are plain values. Each is declared once: the type has its limits, the default is
that of the `Trainer`, the text below is its documentation. The section `train:` of a config inherits them.

`Components` is what a trainer was made of. The engine, the loop and the checkpoints get it; none of them knows the trainer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, get_type_hints

import msgspec
from msgspec import Meta
from msgspec.inspect import Field, type_info

from stoker._types import LARGE, expected
from stoker.errors import OptionError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from stoker.train.distributed import Ranks
    from stoker.train.schedule import Schedule
    from stoker.train.step import Ema, LossFunction

Count = Annotated[int, Meta(ge=1, le=2**48)]
Positive = Annotated[float, Meta(gt=0)]


class TrainerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a `Trainer` that are plain values."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Precision of the computations; `auto` is fp32, unless `speed: measured` finds something faster."""
    grad_accum_steps: Count = 1
    """Batches per update."""
    max_grad_norm: Positive | None = None
    """Gradients are clipped to this norm."""
    ema: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Decay of the EMA of the weights, which is what is evaluated and exported."""
    graph: bool | Literal["auto"] = "auto"
    """The whole step as a CUDA graph, which needs a fused optimizer; `auto` where it is faster and weights stay bit-equal."""
    compile: bool | Literal["auto"] = "auto"
    """`torch.compile` of the model; `auto` is false, unless `speed: measured` finds it faster."""
    fused: bool | None = None
    """One kernel updates all weights (adam, adamw, sgd); by default torch's own choice."""
    speed: Literal["exact", "measured"] = "exact"
    """`exact` chooses only what leaves the weights bit-equal; `measured` whatever is faster with the same losses."""
    activation_checkpointing: bool = False
    """Recompute repeated layers in the backward pass instead of keeping their activations: less memory, more time."""
    guard: Literal["stop", "skip"] = "stop"
    """What follows a loss or gradient that is NaN or Inf: the run stops, or the update is skipped."""
    max_seconds: Positive | None = None
    """Time after which the run is saved and ends."""
    save_every: Count | None = None
    """Updates between checkpoints; by default one per epoch."""
    keep_checkpoints: Count = 2
    """Checkpoints that are kept, beside the best one."""
    log_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    """Updates between lines of metrics.jsonl."""
    parallel: Literal["auto", "ordered", "ddp", "fsdp"] = "auto"
    """With torchrun: `ordered` gives the same bits on any number of processes, `fsdp` shards weights; `auto` is ordered, on GPUs ddp."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """Seed of weights, order and dropout."""

    @classmethod
    def checked(cls, **options: Any) -> Self:
        """Make settings of these options.

        Raises:
            OptionError: A value is of another type, or beyond its limits.
        """
        fields, hints = _schema()
        checked = {}
        for name, value in options.items():
            if isinstance(value, float):
                value = float(value)  # np.float64 is one
            try:
                if isinstance(value, float) and not math.isfinite(value):
                    raise msgspec.ValidationError
                checked[name] = msgspec.convert(value, hints[name])
            except msgspec.ValidationError:
                words = expected(fields[name].type, limits=isinstance(value, int) and value >= LARGE, python=True)
                raise OptionError(f"{name} is {value!r}; expected {words}.") from None
        return cls(**checked)


@cache
def _schema() -> tuple[dict[str, Field], dict[str, Any]]:
    """Fields and annotations by name; reading them takes longer than a step of a small model."""
    fields = {field.name: field for field in type_info(TrainerSettings).fields}  # type: ignore[attr-defined]
    return fields, get_type_hints(TrainerSettings, include_extras=True)


@dataclass(frozen=True, kw_only=True)
class Components:
    """What a trainer was made of, checked and on its device."""

    settings: TrainerSettings
    model: nn.Module
    loss: LossFunction
    loss_modules: tuple[nn.Module, ...]
    """The loss, where it is a module, which may have buffers."""
    optimizer: torch.optim.Optimizer
    rates: tuple[float, ...]
    """The learning rate of each parameter group, which a schedule multiplies."""
    schedule: Schedule | None
    ema: Ema | None
    device: torch.device
    ranks: Ranks
    shows_progress: bool
    micro_batches: int | None = None
    """Batches per update, of all ranks, where the batches are the same on any number of them (`Feed(global_batch_size=…)`)."""

    @cached_property
    def compiled(self) -> nn.Module:
        """The model as torch.compile makes it, when it is first called."""
        import torch

        return cast("nn.Module", torch.compile(self.model))

    def say(self, line: str) -> None:
        """Print a line, where progress is shown."""
        if self.shows_progress:
            print(f"  {line}", flush=True)

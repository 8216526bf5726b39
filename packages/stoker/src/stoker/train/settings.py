"""The settings of a training run, and what they apply to.

`TrainerSettings` holds the options of a `Trainer` that are plain values. Each is declared once: the type has its limits, the default is
that of the `Trainer`, the text below is its documentation. The section `train:` of a config inherits them. Options that belong together
are one value, and one section of the config:

    Execution      how steps are computed: graph, compile, fused, measured, parallel, activation_checkpointing
    Checkpoints    when a run is saved, and what is kept
    Logging        what a run writes down besides its checkpoints

`Components` holds what a trainer consists of. The engine, the loop and the checkpoints get it; none of them knows the trainer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    import torch
    from torch import nn

    from stoker.train.distributed import Ranks
    from stoker.train.ema import Ema
    from stoker.train.loss import LossFunction
    from stoker.train.schedule import Schedule

Count = Annotated[int, Meta(ge=1, le=2**48)]
Positive = Annotated[float, Meta(gt=0)]


class Execution(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How steps are computed.

    Example:
        >>> Execution(compile=True, fused=True).compile
        True
    """

    graph: bool | Literal["auto"] = "auto"
    """The whole step as a CUDA graph, which needs a fused optimizer; `auto` where it is faster and weights stay bit-equal."""
    compile: bool | Literal["auto"] = "auto"
    """`torch.compile` of the model; `auto` is false, unless `measured` finds it faster."""
    fused: bool | None = None
    """One kernel updates all weights (Adam, AdamW, SGD, Adagrad); by default the optimizer stays as it was made."""
    measured: bool = False
    """Choose by measuring whatever is faster with the same losses; by default only what leaves the weights bit-equal."""
    parallel: Literal["auto", "ordered", "ddp", "fsdp"] = "auto"
    """With torchrun: `ordered` gives the same bits on any number of processes, `fsdp` shards weights; `auto` is ordered, on GPUs ddp."""
    activation_checkpointing: bool = False
    """Recompute repeated layers in the backward pass instead of keeping their activations: less memory, more time."""


class Checkpoints(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a run is saved, and what is kept.

    Example:
        >>> Checkpoints(every=500).keep
        2
    """

    every: Count | None = None
    """Updates between checkpoints; by default one per epoch."""
    keep: Count = 2
    """Checkpoints that are kept, in addition to the best one."""
    copies: str | None = None
    """URL of a folder in object storage, like `s3://bucket/runs/a`, that gets a copy of each checkpoint; other machines resume from it."""


class Logging(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run writes down besides its checkpoints.

    Example:
        >>> Logging(every=10).watch
        True
    """

    every: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    """Updates between lines of metrics.jsonl."""
    watch: bool = True
    """Watch the times of updates, and report slowdowns with their causes (see `stoker.watch`)."""
    config: dict[str, Any] = {}
    """Your own values, which run.json keeps."""


class TrainerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a `Trainer` that are plain values."""

    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Precision of the computations; `auto` is fp32, unless `execution.measured` finds something faster."""
    grad_accum_steps: Count = 1
    """Batches per update."""
    max_grad_norm: Positive | None = None
    """Gradients are clipped to this norm."""
    ema: Annotated[float, Meta(ge=0, lt=1)] | None = None
    """Decay of the EMA of the weights, which is what is evaluated and exported."""
    guard: Literal["stop", "skip"] = "stop"
    """What follows a loss or gradient that is NaN or Inf: the run stops, or the update is skipped."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    """Seed of weights, order and dropout."""
    execution: Execution = Execution()
    """How steps are computed."""
    checkpoints: Checkpoints = Checkpoints()
    """When the run is saved, and what is kept."""
    logging: Logging = Logging()
    """What the run writes down besides its checkpoints."""


@dataclass(frozen=True, kw_only=True)
class Components:
    """What a trainer consists of, checked and on its device."""

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
    """Batches per update, of all ranks, where the batches are the same on any number of them (`Distributed(global_batch_size=…)`)."""

    @cached_property
    def compiled(self) -> nn.Module:
        """The model as torch.compile makes it, when it is first called."""
        import torch

        return cast("nn.Module", torch.compile(self.model))

    def say(self, line: str) -> None:
        """Print a line, where progress is shown."""
        if self.shows_progress:
            print(f"  {line}", flush=True)

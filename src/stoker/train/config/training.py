"""The configuration of a training, as one value: what a run needs to be run again."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from stoker.train.config.data import Count, Data
from stoker.train.config.model import AnyLoss, AnyModel, Mse
from stoker.train.config.split import AnySplit
from stoker.train.config.update import AdamW, AnyOptimizer, AnySchedule, ConstantRate, Positive, Rate

Metric = Literal["mae", "mse", "accuracy", "auc"]


class EarlyStopping(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When to stop before the last epoch."""

    metric: str = "val_loss"
    """What is watched."""
    patience: Count = 5
    """Evaluations in a row without an improvement after which it stops."""
    mode: Literal["min", "max"] | None = None
    """Whether less or more is better; by default told from the name."""
    min_delta: Rate = 0.0
    """What counts as an improvement at least."""


class Train(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the training goes."""

    epochs: Count = 1
    """Passes over the training samples."""
    folder: str | None = None
    """Folder of the run; by default `runs/` and the name of the configuration."""
    device: str | None = None
    """`cpu`, `cuda` or `cuda:1`; by default a GPU where there is one."""
    ranks: Literal["auto", "ddp", "fsdp"] = "auto"
    """What the processes of torchrun keep: `ddp` all weights each, `fsdp` a part each; `auto` is ddp."""
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    """Decides weights, order and dropout."""
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    """Of the calculations; `auto` is fp32, unless `speed: measured` finds something faster."""
    accumulate: Count = 1
    """Batches of one update."""
    clip: Positive | None = None
    """Largest norm of the gradients."""
    ema: Annotated[float, Meta(gt=0, lt=1)] | None = None
    """Decay of the moving average of the weights, which is what is evaluated and exported."""
    graph: bool | Literal["auto"] = "auto"
    """The whole step as a CUDA graph, which needs a fused optimizer; `auto` where it is faster and weights stay bit-equal."""
    compile: bool | Literal["auto"] = "auto"
    """`torch.compile` of the model; `auto` is false, unless `speed: measured` finds it faster."""
    fused: bool | None = None
    """One kernel updates all weights (adam, adamw, sgd); by default torch's own choice."""
    speed: Literal["exact", "measured"] = "exact"
    """`exact` chooses only what leaves the weights bit-equal; `measured` whatever is faster with the same losses."""
    setup: str | None = None
    """Folder of a run whose precision, fused, graph and compile are taken over."""
    recompute: bool = False
    """Compute repeated layers again in the backward pass instead of keeping what they made: less memory, more time."""
    guard: Literal["stop", "skip"] = "stop"
    """What follows on a loss or gradient that is no number: the run stops, or the update is left out."""
    metrics: list[Metric] = []
    """What is measured in evaluation, beside the loss."""
    early_stopping: EarlyStopping | None = None
    """When to stop before the last epoch."""
    max_seconds: Positive | None = None
    """Time after which the run is saved and ends."""
    save_every: Count | None = None
    """Updates between two checkpoints; by default one an epoch."""
    keep: Count = 2
    """Checkpoints that are kept, beside the best one."""
    log_every: Annotated[int, Meta(ge=1, le=1_000_000)] = 50
    """Updates between two lines of metrics.jsonl."""
    writers: list[Literal["tensorboard", "wandb", "mlflow"]] = []
    """Where metrics go beside metrics.jsonl."""


class Config(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The configuration of a training."""

    data: Data
    """What is fed."""
    split: AnySplit | None = None
    """Which samples are held back for validation and test; by default none."""
    model: AnyModel
    """What is trained."""
    loss: AnyLoss = Mse()
    """What is made small."""
    optimizer: AnyOptimizer = AdamW()
    """How weights are changed."""
    schedule: AnySchedule = ConstantRate()
    """How the learning rate goes."""
    train: Train = Train()
    """How the training goes."""

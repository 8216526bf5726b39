"""Settings of an IceCube run, validated."""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec

from stoker.errors import OptionError
from stoker_recipes.icecube.model import SIZES, IceCubeSize


class IceCubeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a run; the defaults are those of the published 5M model."""

    recipe: Literal["icecube"] = "icecube"
    """The name of the recipe."""
    data: str
    """A store that `stoker pack --recipe icecube` made."""
    size: str = "5m"
    """5m, 10m, 19m, 29m or tiny."""
    input: Literal["linear", "none"] = "linear"
    """Map of the tokens."""
    head: Literal["vmf", "direction"] = "vmf"
    """What is predicted."""
    max_doms: int = 128
    """Most DOMs per event; bright events may need 512."""
    where: str | None = None
    """A condition over events, such as "num_steps >= 500"."""
    valid: str | None = None
    """Events to validate on after each epoch, which are not trained on: a condition such as "batch_id == 651", or another store."""
    init: str | None = None
    """A run to start from, with its weights."""
    batch_size: int = 4096
    """Events per update and rank."""
    grad_accum_steps: int = 1
    """Batches per update."""
    epochs: int = 10
    """Passes over the events."""
    order: Literal["blocks", "shuffle", "sequential"] = "blocks"
    """In which order events come."""
    lr: float = 0.005
    """Highest learning rate of Muon."""
    side_lr: float = 3e-4
    """Highest learning rate of AdamW."""
    warmup: int = 2000
    """Updates until it is reached; at most 30 % of the run."""
    weight_decay: float = 0.01
    """Weight decay."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient."""
    kappa_penalty: float = 1e-4
    """First weight of the penalty on kappa."""
    angle_weight: float = 0.5
    """Weight of the angle in the loss."""
    ema: float | None = None
    """Decay of an EMA of the weights; by default none."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """auto: bf16 on a GPU."""
    residual: Literal["fp32", "bf16"] = "fp32"
    """Type of the residual in bf16."""
    graph: bool | Literal["auto"] = "auto"
    """Steps as CUDA graphs."""
    save_every: int | None = None
    """Updates between checkpoints; by default one per epoch."""
    max_seconds: float | None = None
    """Stop after this time."""
    seed: int = 17
    """Seed of all random choices."""

    def checked(self) -> IceCubeSettings:
        """The settings themselves; raises `OptionError` for invalid ones."""
        if self.size not in SIZES:
            raise OptionError.expected("size", self.size, f"one of {', '.join(SIZES)}")
        for name in ("max_doms", "batch_size", "grad_accum_steps", "epochs", "save_every"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= 2**40:
                raise OptionError.expected(name, value, "an integer from 1")
        for name in ("lr", "side_lr", "max_grad_norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError.expected(name, getattr(self, name), "a number above 0")
        for name in ("warmup", "weight_decay", "kappa_penalty", "angle_weight", "seed"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise OptionError.expected(name, getattr(self, name), "a number from 0")
        return self

    @property
    def model_size(self) -> IceCubeSize:
        """The size of the model, with its input and head."""
        return dataclasses.replace(SIZES[self.size], input=self.input, head=self.head)

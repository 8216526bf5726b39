"""Settings of an IceCube run, validated."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import msgspec

from stoker.errors import OptionError
from stoker_recipes import run_folder
from stoker_recipes.icecube.model import SIZES, IceCubeSize


class IceCubeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a run; the defaults are those of the published 5M model."""

    recipe: Literal["icecube"] = "icecube"
    data: str
    size: str = "5m"  # a key of SIZES
    input: Literal["linear", "none"] = "linear"
    head: Literal["vmf", "direction"] = "vmf"
    max_doms: int = 128  # most DOMs per event; bright events may need 512
    where: str | None = None  # a condition over events, such as "num_steps >= 500"
    valid: str | None = None
    """Events to validate on after each epoch, which are not trained on: a condition such as "batch_id == 651", or another store."""
    init: str | None = None  # a run to start from, with its weights
    batch_size: int = 4096  # events per update and rank
    grad_accum_steps: int = 1
    epochs: int = 10
    order: Literal["blocks", "shuffle", "sequential"] = "blocks"
    lr: float = 0.005  # of Muon
    side_lr: float = 3e-4  # of AdamW
    warmup: int = 2000  # updates; at most 30 % of the run
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    kappa_penalty: float = 1e-4
    angle_weight: float = 0.5
    ema: float | None = None
    precision: Literal["auto", "fp32", "bf16"] = "auto"  # auto: bf16 on a GPU
    residual: Literal["fp32", "bf16"] = "fp32"
    graph: bool | Literal["auto"] = "auto"
    save_every: int | None = None
    max_seconds: float | None = None
    seed: int = 17

    def checked(self) -> IceCubeSettings:
        """The settings themselves; raises `OptionError` for invalid ones."""
        if self.size not in SIZES:
            raise OptionError(f"size is {self.size!r}; expected one of {', '.join(SIZES)}.")
        for name in ("max_doms", "batch_size", "grad_accum_steps", "epochs", "save_every"):
            if (value := getattr(self, name)) is not None and not 1 <= value <= 2**40:
                raise OptionError(f"{name} is {value!r}; expected an integer from 1.")
        for name in ("lr", "side_lr", "max_grad_norm"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected a number above 0.")
        for name in ("warmup", "weight_decay", "kappa_penalty", "angle_weight", "seed"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected a number from 0.")
        return self

    @property
    def model_size(self) -> IceCubeSize:
        """The size of the model, with its input and head."""
        return dataclasses.replace(SIZES[self.size], input=self.input, head=self.head)


def make_settings(given: dict[str, Any]) -> IceCubeSettings:
    """Settings from plain values; raises `OptionError` for an invalid one."""
    return run_folder.make_settings(IceCubeSettings, given, recipe="icecube")


def read_settings(folder: Path) -> IceCubeSettings:
    """The settings of a run's folder."""
    return run_folder.read_settings(folder, IceCubeSettings, recipe="icecube")

"""Settings of a Time-MoE run, validated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from stoker.errors import OptionError
from stoker_recipes.time_moe.layers import Size

Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]


MOST = 10**12  # upper bound of all counts


class TimeMoeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults are the authors' recipe, but for batches of 8 rows (they: 64, which `grad_accum_steps=8` gives)."""

    recipe: Literal["time-moe"] = "time-moe"
    """The name of the recipe."""
    data: str
    """A store, a tree of the authors' files, or a file of series."""
    size: str | Size | None = None
    """A published size, or numbers; by default those of `model` or `init`, or 50m. A run saves the numbers."""
    model: str | None = None
    """A config.json, or a folder with one: random weights in a model of these sizes."""
    init: str | None = None
    """An official checkpoint to start from."""
    length: int = 2048
    """Positions of a row."""
    samples: Literal["packed", "padded", "compat"] = "packed"
    """packed: short series share rows; padded: one piece of a series per row; compat: the authors' windows bit for bit."""
    stride: int | None = None
    """Stride of the authors' windows; by default the length."""
    normalize: Literal["zero", "max", "none"] = "zero"
    """Scaling of series."""
    columns: list[str] | None = None
    """Columns of a store or table to train on; by default all of numbers."""
    batch_size: int = 8
    """Rows per batch and rank."""
    grad_accum_steps: int = 1
    """Batches of an update."""
    steps: int | None = None
    """Updates; by default as many as `epochs` passes over the data take."""
    epochs: float = 1.0
    """Passes over the data."""
    lr: float = 1e-4
    """Initial learning rate."""
    lr_end: float = 5e-5
    """Learning rate at the end of the cosine decay."""
    warmup: int = 0
    """Warm-up updates of the learning rate."""
    weight_decay: float = 0.1
    """Weight decay of AdamW."""
    max_grad_norm: float = 1.0
    """Largest norm of the gradient."""
    head_weights: list[float] | None = None
    """Relative weights of the losses of the heads; by default equal."""
    valid: float | None = None
    """Share of each series, at its end, for validation; by default a tenth (compat: none)."""
    valid_batches: int = 32
    """Most batches per validation."""
    validate_every: int | None = None
    """Updates between validations; by default a tenth of all."""
    save_every: int | None = None
    """Updates between checkpoints; by default at each validation."""
    precision: Precision = "auto"
    """auto: bf16 on a GPU that supports it."""
    graph: bool | Literal["auto"] = "auto"
    """Steps as CUDA graphs."""
    compile: bool | Literal["auto"] = "auto"
    """Compile the model."""
    activation_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time."""
    max_seconds: float | None = None
    """Stop after this time."""
    seed: int = 9899
    """Seed of all random choices."""

    def checked(self) -> TimeMoeSettings:
        """The settings themselves; raises `OptionError` for invalid ones."""
        rules: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
            ("length batch_size grad_accum_steps steps valid_batches validate_every save_every stride",
             lambda value: 1 <= value <= MOST, f"an integer from 1 to {MOST:,}"),
            ("lr max_grad_norm epochs max_seconds", lambda value: 0 < value < math.inf, "a number above 0"),
            ("warmup weight_decay seed", lambda value: 0 <= value < math.inf, "a number from 0"),
            ("valid", lambda value: 0 <= value < 1, "a share from 0 to below 1"),
        )  # fmt: skip
        for names, holds, expected in rules:
            for name in names.split():
                if (value := getattr(self, name)) is not None and not holds(value):
                    raise OptionError.expected(name, value, f"{expected}")
        weights = self.head_weights
        if weights is not None and not (all(0 <= weight < math.inf for weight in weights) and sum(weights) > 0):
            raise OptionError(
                f"head_weights are {weights!r}; expected a number from 0 for each head, and one above 0.", parameter="head_weights"
            )
        if self.model is not None and isinstance(self.size, str):
            raise OptionError(
                f"size is {self.size!r} and model {self.model!r}; both set the size of the model. Pass one of them.",
                parameter="size",
            )
        if not 0 <= self.lr_end <= self.lr:
            raise OptionError.expected("lr_end", self.lr_end, f"a rate from 0 up to lr ({self.lr!r})")
        if self.samples == "compat" and self.valid:
            raise OptionError(
                "samples='compat' scales by whole series, so validation data at their ends would leak into training. "
                "Use samples='packed' or 'padded', or valid=0.",
                parameter="samples",
            )
        if self.samples != "compat" and self.stride is not None:
            raise OptionError("stride= needs samples='compat': the others use every target once.", parameter="stride")
        return self

    @property
    def valid_share(self) -> float:
        """The share for validation, with its default."""
        return self.valid if self.valid is not None else 0.0 if self.samples == "compat" else 0.1

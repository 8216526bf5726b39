"""Settings: all that a training of Time-MoE is told, as one checked value that its run keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from stoker.errors import ConfigInvalid, OptionError
from stoker.recipes.time_moe.sizes import Size

NAME = "recipe.json"
RECIPE = "time-moe"
Samples = Literal["packed", "padded", "compat"]
Precision = Literal["auto", "fp32", "tf32", "bf16", "fp16"]


MOST = 10**12
"""Of anything that is counted."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The defaults are the authors' recipe, but for batches of 8 rows (they: 64, which `accumulate=8` gives)."""

    recipe: Literal["time-moe"] = "time-moe"
    data: str
    size: str | Size | None = None
    """One of the published sizes, or numbers; by default those of `model` or `init`, or 50m. A run keeps the numbers here."""
    model: str | None = None
    """A config.json, or a folder with one: weights begin at random, in a model of these sizes."""
    init: str | None = None
    """An official checkpoint to begin with."""
    length: int = 2048
    """Positions of a row."""
    samples: Samples = "packed"
    """packed: short series share rows, padded: one piece of a series a row, compat: the authors' windows bit for bit."""
    stride: int | None = None
    """Of the authors' windows; by default the length."""
    normalize: Literal["zero", "max", "none"] = "zero"
    columns: list[str] | None = None
    batch_size: int = 8
    """Rows of a batch, on each rank."""
    accumulate: int = 1
    """Batches of an update."""
    steps: int | None = None
    """Updates; without a number, as many as `epochs` passes over the data take."""
    epochs: float = 1.0
    lr: float = 1e-4
    lr_end: float = 5e-5
    """The learning rate at the end of half a cosine."""
    warmup: int = 0
    weight_decay: float = 0.1
    clip: float = 1.0
    head_weights: list[float] | None = None
    """How much the loss of each horizon's head counts, relative to the others; by default all alike."""
    valid: float | None = None
    """Share of each series, at its end, for validation; by default a tenth (compat: none)."""
    valid_batches: int = 32
    """Batches of a validation, at most."""
    validate_every: int | None = None
    """Updates between two validations; by default a tenth of all."""
    save_every: int | None = None
    precision: Precision = "auto"
    """auto: bf16 on a GPU that has it; graph and compile: on a GPU, and where that pays."""
    graph: bool | Literal["auto"] = "auto"
    compile: bool | Literal["auto"] = "auto"
    recompute: bool = False
    max_seconds: float | None = None
    seed: int = 9899

    def checked(self) -> Settings:
        """Itself, if what it says can be meant."""
        for name in ("length", "batch_size", "accumulate", "steps", "valid_batches", "validate_every", "save_every", "stride"):
            value = getattr(self, name)
            if value is not None and not 1 <= value <= MOST:
                raise OptionError(f"{name} is {value!r}; expected an integer from 1 to {MOST:,}.")
        for name in ("lr", "clip", "epochs", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise OptionError(f"{name} is {value!r}; expected a number above 0.")
        for name in ("warmup", "weight_decay", "seed"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise OptionError(f"{name} is {getattr(self, name)!r}; expected a number from 0.")
        weights = self.head_weights
        if weights is not None and not (all(0 <= one < float("inf") for one in weights) and sum(weights) > 0):
            raise OptionError(f"head_weights are {weights!r}; expected a number from 0 for each head, and one above 0.")
        if self.model is not None and isinstance(self.size, str):
            raise OptionError(f"size is {self.size!r} and model {self.model!r}; both say how large the model is. Give one of them.")
        if self.valid is not None and not 0 <= self.valid < 1:
            raise OptionError(f"valid is {self.valid!r}; expected a share from 0 to below 1.")
        if not 0 <= self.lr_end <= self.lr:
            raise OptionError(f"lr_end is {self.lr_end!r}; expected a rate from 0 up to lr ({self.lr!r}).")
        if self.samples == "compat" and self.valid:
            raise OptionError(
                "samples are 'compat', which scale by whole series: a validation at their ends would be seen by the training. "
                "Use samples 'packed' or 'padded', or leave out the validation."
            )
        if self.samples != "compat" and self.stride is not None:
            raise OptionError("stride is for samples 'compat': the others take every target once.")
        return self

    @property
    def valid_share(self) -> float:
        """The share for validation, as it is meant."""
        return self.valid if self.valid is not None else 0.0 if self.samples == "compat" else 0.1


def make_settings(given: dict[str, Any]) -> Settings:
    """Settings from plain values; one that cannot be meant is named."""
    try:
        return msgspec.convert(given, Settings).checked()
    except msgspec.ValidationError as error:
        raise OptionError(f"time-moe: {error}.") from error


def read_settings(folder: Path) -> Settings:
    """The settings of a run's folder."""
    path = folder / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=Settings).checked()
    except FileNotFoundError:
        raise ConfigInvalid(f"{folder} has no {NAME}, so it is no run of Time-MoE. Begin one: stoker train time-moe …") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigInvalid(f"{path} is damaged: {error}.") from error

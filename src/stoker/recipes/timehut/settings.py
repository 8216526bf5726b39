"""Settings of one member: its method, the terms of its loss, its sizes, and how long it is trained; flags of the authors' script."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import torch

from stoker.errors import OptionError
from stoker.recipes.timehut.encoder import EncoderSize
from stoker.recipes.timehut.schedules import SCHEDULES, temperatures

METHODS = ("timehut", "ts2vec", "softclt")
OF_METHOD: dict[str, dict[str, Any]] = {
    "timehut": {"schedule": "cosine", "min_tau": 0.15, "max_tau": 0.75, "t_max": 10.5, "amc_instance": 0.5, "amc_temporal": 0.5},
    "ts2vec": {},
    "softclt": {"tau_instance": 0.1, "tau_temporal": 2.5},
}
"""Defaults of a method, where they differ from those of `EncoderSettings`: known-good values of the authors."""


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """The settings of one encoder. `make_settings` fills in the defaults of a method.

    `updates=0` is TS2Vec's rule: 200 updates where the data has at most 100,000 values, else 600. `epochs` wins where it is given.
    """

    method: str = "timehut"
    epochs: int | None = None
    updates: int = 0
    batch_size: int = 8
    lr: float = 1e-3
    weight_decay: float = 0.01
    hidden: int = 64
    depth: int = 10
    width: int = 320
    dropout: float = 0.1
    max_train_length: int = 3000
    schedule: str = "constant"
    min_tau: float = 1.0
    max_tau: float = 1.0
    t_max: float = 10.5
    amc_instance: float = 0.0
    amc_temporal: float = 0.0
    amc_margin: float = 0.5
    tau_instance: float = 0.0
    tau_temporal: float = 0.0
    compat: bool = True
    seed: int = 2002

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise OptionError(f"method is {self.method!r}; expected one of {', '.join(METHODS)}.")
        if self.schedule not in SCHEDULES:
            raise OptionError(f"schedule is {self.schedule!r}; expected one of {', '.join(SCHEDULES)}.")
        temperatures(self.schedule, 1, low=self.min_tau, high=self.max_tau, period=self.t_max)
        for name, least in (("batch_size", 1), ("max_train_length", 2), ("updates", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise OptionError(f"{name} is {getattr(self, name)}; expected an integer from {least}.")
        if self.epochs is not None and self.epochs < 1:
            raise OptionError(f"epochs is {self.epochs}; expected an integer from 1.")
        if self.seed >= 2**32:
            raise OptionError(f"seed is {self.seed}; expected an integer below 2**32, as NumPy takes it.")
        for name in ("lr", "weight_decay", "amc_instance", "amc_temporal", "amc_margin", "tau_instance", "tau_temporal"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise OptionError(f"{name} is {getattr(self, name)}; expected a number from 0.")
        if not 0 <= self.dropout < 1:
            raise OptionError(f"dropout is {self.dropout}; expected a number from 0 to below 1.")

    def size(self, channels: int) -> EncoderSize:
        """The sizes of the encoder for series of this number of channels."""
        return EncoderSize(channels=channels, hidden=self.hidden, depth=self.depth, width=self.width)

    def num_updates(self, num_values: int, per_epoch: int) -> int:
        """Updates of the whole training run, for data of this number of values."""
        if self.epochs is not None:
            return self.epochs * per_epoch
        return self.updates or (200 if num_values <= 100_000 else 600)


NAMES = tuple(one.name for one in fields(EncoderSettings))


def make_settings(method: str = "timehut", **given: Any) -> EncoderSettings:
    """The settings of a method, with its own defaults where nothing is given.

    Args:
        method: "timehut", "ts2vec" or "softclt".
        given: Fields of `EncoderSettings`. None means the default.

    Raises:
        OptionError: An unknown name, or an invalid value.

    Example:
        >>> make_settings("timehut", epochs=200).max_tau, make_settings("ts2vec").max_tau
        (0.75, 1.0)
    """
    if method not in METHODS:
        raise OptionError(f"method is {method!r}; expected one of {', '.join(METHODS)}.")
    unknown = sorted(set(given) - set(NAMES))
    if unknown:
        raise OptionError(f"{unknown[0]!r} is not a setting; expected some of {', '.join(NAMES)}.")
    return EncoderSettings(method=method, **{**OF_METHOD[method], **{name: one for name, one in given.items() if one is not None}})


def change(settings: EncoderSettings, values: Mapping[str, Any]) -> EncoderSettings:
    """The settings with other values."""
    return replace(settings, **values)


# Does this optimisation do anything? The options of the authors' training script, and what each does here. Their script swallows errors,
# so a flag that fails looks like one that works. Here each flag that is given is answered: it acts, with what it changes, or it is
# ignored, with the reason.


FLAGS = {
    "amp": "Mixed precision.",
    "compile": "torch.compile.",
    "channels-last": "Memory format of convolutions.",
    "memory-mode": "Clear caches, collect garbage often.",
    "dynamic-batch": "Batch size from the number of series.",
    "cudnn-benchmark": "Let cuDNN choose its kernels by measuring.",
    "tf32": "TensorFloat-32 matmuls.",
    "pin-memory": "Pinned memory and persistent loader workers.",
    "skip-search": "No search of hyperparameters.",
}


@dataclass(frozen=True, kw_only=True)
class FlagEffect:
    """What a flag did."""

    flag: str
    acts: bool
    reason: str


def apply_flags(
    flags: Collection[str], settings: EncoderSettings, *, num_series: int, device: torch.device
) -> tuple[EncoderSettings, list[FlagEffect]]:
    """The settings with what the flags change, and an answer for each flag.

    Args:
        flags: Names of `FLAGS`.
        settings: The settings without them.
        num_series: Training series.
        device: Where the encoder is trained.

    Raises:
        OptionError: An unknown flag.

    Example:
        >>> from stoker.recipes.timehut import make_settings
        >>> changed, found = apply_flags(["dynamic-batch", "amp"], make_settings(), num_series=20, device=torch.device("cpu"))
        >>> changed.batch_size, [(one.flag, one.acts) for one in found]
        (20, [('dynamic-batch', True), ('amp', False)])
    """
    is_gpu, effects = device.type == "cuda", []
    ignored = {
        "amp": "the loss needs float32 (acos and softmax lose the digits that count), and "
        + ("matmuls use TF32 already." if is_gpu else "on a CPU matmuls of bfloat16 this small are slower."),
        "compile": "an update is one CUDA graph of fused kernels already."
        if is_gpu
        else "compiling takes longer than a run of this size.",
        "channels-last": "it is a format of images (4 dimensions); here channels are last anyway, and convolutions are matmuls.",
        "memory-mode": "the memory of an update is allocated once; emptying caches would only allocate it again.",
        "cudnn-benchmark": "no cuDNN kernel is used: convolutions are matmuls.",
        "pin-memory": "there is no loader: all series and crops are on the device before the first update.",
        "skip-search": "training never searches; the defaults are known-good. Searching is `stoker tune search timehut`.",
    }
    for flag in flags:
        if flag not in FLAGS:
            raise OptionError(f"flags has {flag!r}; expected some of {', '.join(FLAGS)}.")
        if flag == "dynamic-batch":
            # The authors' rule: 4 times as many for fewer than 500 series, a quarter for more than 5,000; at most all series.
            factor = 4 if num_series < 500 else 0.25 if num_series > 5000 else 1
            size = max(1, min(num_series, int(settings.batch_size * factor)))
            acts = size != settings.batch_size
            reason = f"batch size {settings.batch_size} -> {size}; this changes the results, and the number of updates of an epoch."
            effects.append(FlagEffect(flag=flag, acts=acts, reason=reason if acts else f"the batch size stays {size}."))
            settings = replace(settings, batch_size=size)
        elif flag == "tf32":
            reason = "matmuls use TF32, which is the default on a GPU." if is_gpu else "a CPU has no TF32."
            effects.append(FlagEffect(flag=flag, acts=is_gpu, reason=reason))
        else:
            effects.append(FlagEffect(flag=flag, acts=False, reason=ignored[flag]))
    return settings, effects

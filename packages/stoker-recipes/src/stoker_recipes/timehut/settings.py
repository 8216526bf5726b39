"""Settings of one member: its method, the terms of its loss, its sizes, and how long it is trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.timehut.model import EncoderSize

METHODS = ("timehut", "ts2vec", "softclt")
SCHEDULES = ("cosine", "linear", "constant")
OF_METHOD: dict[str, dict[str, Any]] = {
    "timehut": {"schedule": "cosine", "min_tau": 0.15, "max_tau": 0.75, "t_max": 10.5, "amc_instance": 0.5, "amc_temporal": 0.5},
    "ts2vec": {},
    "softclt": {"tau_instance": 0.1, "tau_temporal": 2.5},
}
"""Defaults of a method, where they differ from those of `EncoderSettings`: known-good values of the authors."""


def temperatures(schedule: str, epochs: int, *, low: float, high: float, period: float = 10.5) -> Array:
    """Return the temperature of each epoch.

    `"cosine"` is low + (high - low) / 2 * (1 + cos(pi * epoch / period)), `"linear"` goes from high to low over all epochs, `"constant"` is
    high.

    Args:
        schedule: One of `SCHEDULES`.
        epochs: Number of epochs.
        low: Smallest temperature, above 0.
        high: Largest temperature.
        period: t_max of the cosine, in epochs.

    Returns:
        float64 of length `epochs`.

    Raises:
        OptionError: An unknown schedule, or values that give a temperature of 0 or below.

    Example:
        >>> temperatures("cosine", 3, low=0.5, high=1.0, period=2).round(3).tolist()
        [1.0, 0.75, 0.5]
    """
    if schedule not in SCHEDULES:
        raise OptionError.expected("schedule", schedule, f"one of {', '.join(SCHEDULES)}")
    if not 0 < low <= high or not np.isfinite(high) or not 0 < period < np.inf:
        raise OptionError(
            f"the temperature goes from {low} to {high} with period {period}; expected 0 < low <= high and a period above 0.",
            parameter="temperature",
        )
    epoch = np.arange(epochs, dtype=np.float64)
    if schedule == "cosine":
        return low + (high - low) / 2 * (1 + np.cos(np.pi * epoch / period))
    return high - (high - low) * epoch / max(epochs - 1, 1) if schedule == "linear" else np.full(epochs, float(high))


@dataclass(frozen=True, kw_only=True)
class EncoderSettings:
    """The settings of one encoder. `make_settings` fills in the defaults of a method.

    `updates=0` is TS2Vec's rule: 200 updates where the data has at most 100,000 values, else 600. `epochs` wins where it is given.
    """

    method: str = "timehut"
    """timehut, ts2vec or softclt."""
    epochs: int | None = None
    """Passes over the series; by default `updates` counts."""
    updates: int = 0
    """Updates; 0 for 200, or 600 for more than 100,000 values."""
    batch_size: int = 8
    """Series per update."""
    lr: float = 1e-3
    """Learning rate."""
    weight_decay: float = 0.01
    """Weight decay."""
    hidden: int = 64
    """Width of the hidden layers."""
    depth: int = 10
    """Number of dilated convolutions."""
    width: int = 320
    """Values of a representation."""
    dropout: float = 0.1
    """Dropout of representations."""
    max_train_length: int = 3000
    """Longer series are cut into parts of this length."""
    schedule: str = "constant"
    """Temperature over epochs: cosine, linear or constant."""
    min_tau: float = 1.0
    """Smallest temperature."""
    max_tau: float = 1.0
    """Largest temperature."""
    t_max: float = 10.5
    """Period of the temperature, in epochs."""
    amc_instance: float = 0.0
    """Weight of the angular margin between series."""
    amc_temporal: float = 0.0
    """Weight of the angular margin between steps."""
    amc_margin: float = 0.5
    """The angular margin, in radians."""
    tau_instance: float = 0.0
    """SoftCLT: sharpness of targets between series; 0 for hard ones."""
    tau_temporal: float = 0.0
    """SoftCLT: sharpness of targets between steps; 0 for hard ones."""
    compat: bool = True
    """TimeHUT's loss as its authors' code has it."""
    seed: int = 2002
    """Seed of all random choices."""

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise OptionError.expected("method", self.method, f"one of {', '.join(METHODS)}")
        temperatures(self.schedule, 1, low=self.min_tau, high=self.max_tau, period=self.t_max)
        for name, least in (("batch_size", 1), ("epochs", 1), ("max_train_length", 2), ("updates", 0), ("seed", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise OptionError.expected(name, value, f"an integer from {least}")
        if self.seed >= 2**32:
            raise OptionError.expected("seed", self.seed, "an integer below 2**32, as NumPy takes it")
        for name in ("lr", "weight_decay", "amc_instance", "amc_temporal", "amc_margin", "tau_instance", "tau_temporal"):
            if not 0 <= getattr(self, name) < math.inf:
                raise OptionError.expected(name, getattr(self, name), "a number from 0")
        if not 0 <= self.dropout < 1:
            raise OptionError.expected("dropout", self.dropout, "a number from 0 to below 1")

    def size(self, channels: int) -> EncoderSize:
        """The sizes of the encoder for series of this number of channels."""
        return EncoderSize(channels=channels, hidden=self.hidden, depth=self.depth, width=self.width)

    def num_updates(self, num_values: int, per_epoch: int) -> int:
        """Updates of the whole training run, for data of this number of values."""
        if self.epochs is not None:
            return self.epochs * per_epoch
        return self.updates or (200 if num_values <= 100_000 else 600)


NAMES = tuple(field.name for field in fields(EncoderSettings))


def make_settings(method: str = "timehut", **options: Any) -> EncoderSettings:
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
    unknown = sorted(set(options) - set(NAMES))
    if unknown:
        raise OptionError(f"{unknown[0]!r} is not a setting; expected some of {', '.join(NAMES)}.", parameter=unknown[0])
    return EncoderSettings(
        method=method, **{**OF_METHOD.get(method, {}), **{name: value for name, value in options.items() if value is not None}}
    )

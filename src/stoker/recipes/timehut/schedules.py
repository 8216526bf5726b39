"""Temperatures over the epochs of a training run.

cosine     min + (max - min) / 2 * (1 + cos(pi * epoch / t_max)); periodic
linear     from max to min over all epochs
constant   max
"""

from __future__ import annotations

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError

SCHEDULES = ("cosine", "linear", "constant")


def temperatures(schedule: str, epochs: int, *, low: float, high: float, period: float = 10.5) -> Array:
    """Return the temperature of each epoch.

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
        raise OptionError(f"schedule is {schedule!r}; expected one of {', '.join(SCHEDULES)}.")
    if not 0 < low <= high or not np.isfinite(high) or not 0 < period < np.inf:
        raise OptionError(
            f"the temperature goes from {low} to {high} with period {period}; expected 0 < low <= high and a period above 0."
        )
    epoch = np.arange(epochs, dtype=np.float64)
    if schedule == "cosine":
        return low + (high - low) / 2 * (1 + np.cos(np.pi * epoch / period))
    return high - (high - low) * epoch / max(epochs - 1, 1) if schedule == "linear" else np.full(epochs, float(high))

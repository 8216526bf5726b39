"""Temperatures over the epochs of a training run.

cosine         min + (max - min) / 2 * (1 + cos(pi * epoch / t_max)); periodic
linear         from max to min over all epochs
exponential    max * 0.95^epoch, not below min
step           max, halved every t_max epochs, not below min
polynomial     from max to min with power 2 over all epochs
sigmoid        from max to min in an S curve around the middle
warmup-cosine  rises linearly from min to max over the first tenth, then one half cosine down to min
cyclic         a triangle from min to max and back every t_max epochs
restarts       cosine from max to min every t_max epochs, then max again
constant       max
"""

from __future__ import annotations

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError

SCHEDULES = tuple("cosine linear exponential step polynomial sigmoid warmup-cosine cyclic restarts constant".split())


def temperatures(schedule: str, epochs: int, *, low: float, high: float, period: float = 10.5) -> Array:
    """The temperature of each epoch.

    Args:
        schedule: One of `SCHEDULES`.
        epochs: Number of epochs.
        low: Smallest temperature, above 0.
        high: Largest temperature.
        period: t_max of the periodic schedules and of "step", in epochs.

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
    done = epoch / max(epochs - 1, 1)
    span = high - low
    match schedule:
        case "cosine":
            return low + span / 2 * (1 + np.cos(np.pi * epoch / period))
        case "linear":
            return high - span * done
        case "exponential":
            return np.maximum(low, high * 0.95**epoch)
        case "step":
            return np.maximum(low, high * 0.5 ** np.floor(epoch / period))
        case "polynomial":
            return low + span * (1 - done) ** 2
        case "sigmoid":
            return low + span / (1 + np.exp(12 * (done - 0.5)))
        case "warmup-cosine":
            rise = max(epochs // 10, 1)
            fall = np.clip((epoch - rise) / max(epochs - 1 - rise, 1), 0, 1)
            return np.where(epoch < rise, low + span * epoch / rise, low + span / 2 * (1 + np.cos(np.pi * fall)))
        case "cyclic":
            return low + span * (1 - np.abs(2 * ((epoch / period) % 1) - 1))
        case "restarts":
            return low + span / 2 * (1 + np.cos(np.pi * ((epoch / period) % 1)))
    return np.full(epochs, float(high))

"""Markets with a known signal: random-walk bars, and the logit that no model can beat.

    lag     r[t] + r[t-12] + r[t-40]                    what matters is when
    agg     1.2 r[t] + 1.2 mean |r| over 40 bars        what matters is how much, in any order
    none    0                                           nothing can be known

All terms have mean 0 and deviation 1. As they are, bars are a plain random walk, and labels are to be drawn from the logit
(`draw_labels`). With `follows=True` the bars themselves obey it: the next close is higher with the probability of the logit, so
that labels made of prices carry the signal, and its negative sign keeps the price from running away.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Market = dict[str, Array]
Signal = Literal["lag", "agg", "none"]

MOVE = 5e-4
"""Deviation of the return of a minute."""
DAY = 390
"""Minutes that are traded."""
LAGS = (0, 12, 40)
_MEAN_ABS, _STD_ABS = np.sqrt(2 / np.pi), np.sqrt(1 - 2 / np.pi)


def market(num_bars: int, signal: Signal = "lag", seed: int = 0, *, follows: bool = False) -> Market:
    """Bars of a minute from a price of 300, with `ts` (seconds) and the `logit` of the label at each bar; 0 without a past."""
    rng = np.random.default_rng(seed)
    moves = rng.normal(size=num_bars)
    if follows:
        returns, logit = _following(np.abs(moves), rng.random(num_bars), signal)
    else:
        returns, logit = moves, _logit(moves, signal)
    close = np.round(300 * np.exp(MOVE * np.cumsum(returns)), 4)
    open_ = np.concatenate([[300.0], close[:-1]])
    days, minutes = np.divmod(np.arange(num_bars), DAY)
    return {
        "ts": 1_609_770_600 + 86_400 * (days + 2 * (days // 5)) + 60 * minutes,  # Mondays to Fridays from 2021-01-04 14:30 UTC
        "open": open_,
        "high": np.round(np.maximum(open_, close) * (1 + MOVE * rng.exponential(0.3, num_bars)), 4),
        "low": np.round(np.minimum(open_, close) * (1 - MOVE * rng.exponential(0.3, num_bars)), 4),
        "close": close,
        "volume": rng.integers(1_000, 200_000, num_bars).astype(np.float64),
        "logit": logit,
    }


def draw_labels(logit: Array, seed: int = 0) -> Array:
    """Labels 0 and 1 with the probabilities of these logits, float32."""
    chance = np.random.default_rng([seed, 1]).random(len(logit))
    return (chance < 1 / (1 + np.exp(-logit))).astype(np.float32)


def write_csv(path: Path, bars: Market) -> None:
    """The bars as their CSV has them: ts, open, high, low, close, volume."""
    names = ("ts", "open", "high", "low", "close", "volume")
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(zip(*(bars[name].tolist() for name in names), strict=True))


def _logit(returns: Array, signal: Signal) -> Array:
    """Of a random walk: the sum of terms that all have deviation 1."""
    logit = np.zeros(len(returns))
    if signal == "lag":
        for lag in LAGS:
            logit[lag:] += returns[: len(returns) - lag]
        logit[: max(LAGS)] = 0
    elif signal == "agg":
        window = np.convolve(np.abs(returns), np.ones(40) / 40)[: len(returns)]
        logit = 1.2 * returns + 1.2 * (window - _MEAN_ABS) / (_STD_ABS / np.sqrt(40))
        logit[:39] = 0
    return logit


def _following(sizes: Array, chances: Array, signal: Signal) -> tuple[Array, Array]:
    """Moves of these sizes, each up or down as the logit of the bar before says."""
    num_bars = len(sizes)
    returns, logit = np.zeros(num_bars), np.zeros(num_bars)
    window = np.convolve(sizes, np.ones(40) / 40)[:num_bars]
    activity = (window - _MEAN_ABS) / (_STD_ABS / np.sqrt(40))
    for t in range(num_bars):
        up = chances[t] < 1 / (1 + np.exp(-logit[t - 1])) if t else chances[t] < 0.5
        returns[t] = sizes[t] if up else -sizes[t]
        if t >= max(LAGS):
            if signal == "lag":
                logit[t] = -sum(returns[t - lag] for lag in LAGS)
            elif signal == "agg":
                logit[t] = -1.2 * returns[t] + 1.2 * activity[t]
    return returns, logit

"""Labels: the direction of the next bars, and nothing where there is none.

Comes after the bars of a series, before windows. The law: a row has a label only if it has a future in its own series that clears
the thresholds; every other row is NaN, so that no model can learn how restless the market is in place of where it goes.
`compat` gives what Sentio's trainer gives: 0 for all such rows. Both compute in float64, from closes that were never rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError

Array = npt.NDArray[Any]

LEAST_CLOSE = 1e-12
"""A close below it counts as this one in Sentio's trainer, so that its logarithm is finite."""


@dataclass(frozen=True, kw_only=True)
class Rule:
    """When a row has a label."""

    horizon: int = 1
    """Bars ahead."""
    least_volume: float = 0.0
    """Of the bar ahead."""
    least_change: float = 0.0
    """Of the logarithm of the close."""
    compat: bool = False

    def __str__(self) -> str:
        conditions = [f"a change of at least {self.least_change:g}"] if self.least_change else []
        conditions += [f"a volume of at least {self.least_volume:,.0f}"] if self.least_volume else []
        bars = "the next bar" if self.horizon == 1 else f"{self.horizon} bars ahead"
        return f"direction of {bars}" + (f", with {' and '.join(conditions)}" if conditions else "")


def label_bars(close: Array, volume: Array | None, rule: Rule, *, emit_from: int = 0) -> Array:
    """1 where the close will be higher, 0 where lower, NaN where neither counts; float32, of one series.

    With `compat`, 0 in place of NaN, and in the rows before `emit_from`.
    """
    if rule.horizon < 1:
        raise OptionError(f"label_horizon is {rule.horizon}; expected at least 1 bar.")
    close = np.asarray(close, dtype=np.float64)
    if rule.compat:
        close = np.maximum(close, LEAST_CLOSE)
    labels = np.full(len(close), np.nan, dtype=np.float32)
    if len(close) > rule.horizon:
        ahead = slice(rule.horizon, None)
        with np.errstate(divide="ignore", invalid="ignore"):
            change = np.log(close[ahead]) - np.log(close[: -rule.horizon])
        counts = np.isfinite(change) & (np.abs(change) >= rule.least_change)
        counts &= change > 0 if rule.compat else change != 0
        if rule.least_volume and volume is None:
            raise OptionError(f"min_volume_threshold is {rule.least_volume:g}, but the bars have no volume. Leave it out.")
        if volume is not None and (rule.least_volume or rule.compat):  # theirs compares always: a missing volume has no label
            counts &= np.asarray(volume)[ahead] >= rule.least_volume
        labels[: -rule.horizon][counts] = (change > 0)[counts]
    if rule.compat:
        labels[np.isnan(labels)] = 0.0
        labels[:emit_from] = 0.0
    return labels


def trailing_volatility(close: Array, window: int = 20) -> Array:
    """Deviation of the last `window` returns at each bar; NaN where there are fewer. What compat labels really measure."""
    close = np.asarray(close, dtype=np.float64)
    found = np.full(len(close), np.nan)
    if len(close) > window:
        with np.errstate(divide="ignore", invalid="ignore"):
            returns = np.diff(np.log(close))
        sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (returns, returns**2))
        mean = (sums[window:] - sums[:-window]) / window
        found[window:] = np.sqrt(np.maximum((squares[window:] - squares[:-window]) / window - mean**2, 0))
    return found


def count_labels(labels: Array) -> dict[str, float]:
    """How many rows there are, the share of them that has a label, and the share of labels that are 1."""
    known = np.isfinite(labels)
    return {
        "rows": len(labels),
        "labelled": float(known.mean()) if len(labels) else 0.0,
        "up": float(labels[known].mean()) if known.any() else 0.0,
    }

"""Bars to test with: those of the golden table, random markets, and markets with everything that can be wrong in them."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bars = dict[str, Array]


def golden_bars(num_bars: int = 300) -> Bars:
    """The bars of the golden table."""
    i = np.arange(num_bars)
    close = np.round(100 + 5 * np.sin(0.13 * i) + 0.02 * i, 4)
    open_ = np.concatenate([[100.0], close[:-1]])
    high = np.round(np.maximum(open_, close) + 0.1 + 0.05 * ((7 * i) % 5), 4)
    low = np.round(np.minimum(open_, close) - 0.1 - 0.05 * ((3 * i) % 4), 4)
    return {"open": open_, "high": high, "low": low, "close": close, "volume": 1000.0 + (37 * i % 500)}


def market(num_bars: int, seed: int = 0, *, level: float = 100.0, move: float = 1e-3) -> Bars:
    """A random walk with prices in cents."""
    rng = np.random.default_rng(seed)
    close = np.round(level * np.exp(np.cumsum(rng.normal(0, move, num_bars))), 2)
    open_ = np.concatenate([[level], close[:-1]])[:num_bars]
    spread = level * move
    return {
        "open": open_,
        "high": np.round(np.maximum(open_, close) + rng.exponential(spread, num_bars), 2),
        "low": np.round(np.minimum(open_, close) - rng.exponential(spread, num_bars), 2),
        "close": close,
        "volume": rng.integers(0, 10_000, num_bars).astype(np.float64),
    }


@st.composite
def troubled_markets(draw: st.DrawFn, max_bars: int = 400, *, missing: bool = True) -> Bars:
    """A market with stretches that do not move, bars without volume or range, jumps, and (with `missing`) gaps."""
    num_bars = draw(st.integers(0, max_bars))
    bars = market(num_bars, draw(st.integers(0, 2**32 - 1)), level=draw(st.sampled_from([0.5, 100.0, 30_000.0])))
    kinds = ["constant", "no volume", "no range", "jump", *(["gap", "lost value", "not finite"] if missing else [])]
    for _ in range(draw(st.integers(0, 6)) if num_bars else 0):
        start = draw(st.integers(0, num_bars - 1))
        part = slice(start, start + draw(st.integers(1, 60)))
        trouble = draw(st.sampled_from(kinds))
        if trouble == "constant":
            for name in ("open", "high", "low", "close"):
                bars[name][part] = bars["close"][start]
        elif trouble == "no volume":
            bars["volume"][part] = 0.0
        elif trouble == "no range":
            bars["high"][part] = bars["low"][part] = bars["close"][part]
        elif trouble == "jump":
            for name in ("open", "high", "low", "close"):
                bars[name][start:] *= 0.25
        elif trouble == "gap":
            for name in bars:
                bars[name][part] = np.nan
        elif trouble == "lost value":
            bars[draw(st.sampled_from(sorted(bars)))][start] = np.nan
        else:
            bars[draw(st.sampled_from(sorted(bars)))][start] = draw(st.sampled_from([np.inf, -np.inf, 1e60]))
    return bars

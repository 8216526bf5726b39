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
    """A market with parts that do not move, bars without volume or range, jumps, and (with `missing`) gaps and prices below 0."""
    num_bars = draw(st.integers(0, max_bars))
    bars = market(num_bars, draw(st.integers(0, 2**32 - 1)), level=draw(st.sampled_from([0.5, 100.0, 30_000.0])))
    kinds = ["constant", "no volume", "no range", "jump", *(["gap", "lost value", "not finite", "below 0"] if missing else [])]
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
        elif trouble == "below 0":
            bars[draw(st.sampled_from(["open", "high", "low", "close"]))][part] *= -1.0
        elif trouble == "lost value":
            bars[draw(st.sampled_from(sorted(bars)))][start] = np.nan
        else:
            bars[draw(st.sampled_from(sorted(bars)))][start] = draw(st.sampled_from([np.inf, -np.inf, 1e60]))
    return bars


def edge_markets() -> dict[str, Bars]:
    """One market for each thing that can be odd about bars; plain arithmetic, so that they are the same everywhere."""
    markets = {name: _plain_market(240, salt) for salt, name in enumerate(_ODD)}
    for name, change in _ODD.items():
        change(markets[name])
    return {"plain": _plain_market(3000, 99), "short": _plain_market(9, 98), "empty": _plain_market(0, 97), **markets}


def _plain_market(num_bars: int, salt: int) -> Bars:
    """Prices in cents that wander by steps from a congruential generator."""
    state, rows, close = salt * 7919 + 1, [], 10_000
    for _ in range(num_bars):
        draws = []
        for _ in range(4):
            state = (state * 1_103_515_245 + 12_345) % 2**31
            draws.append(state >> 16)
        before, close = close, max(close + draws[0] % 61 - 30, 500)
        rows.append((before, max(before, close) + draws[1] % 25, min(before, close) - draws[2] % 25, close, draws[3] % 9000 + 1))
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    names = ("open", "high", "low", "close")
    return {**{name: table[:, i] / 100.0 for i, name in enumerate(names)}, "volume": table[:, 4].copy()}


def _set(part: slice, value: float, *names: str) -> Any:
    def change(bars: Bars) -> None:
        for name in names:
            bars[name][part] = value

    return change


def _thin(bars: Bars) -> None:
    """Ranges on both sides of 1e-8, at prices so low that float32 can tell them apart."""
    for name in ("open", "high", "low", "close"):
        bars[name] *= 1e-6
    bars["high"][100:160] = bars["low"][100:160] + np.arange(60) * 1e-9


def _still(bars: Bars) -> None:
    for name in ("open", "high", "low", "close"):
        bars[name][80:140] = bars["close"][80]


def _below_zero(bars: Bars) -> None:
    for name in ("open", "high", "low", "close"):
        bars[name] -= 99.0


_PRICES = ("open", "high", "low", "close")
_ODD = {
    "no movement": _still,
    "no volume": _set(slice(60, 120), 0.0, "volume"),
    "thin ranges": _thin,
    "prices around 0": _below_zero,
    "a price of 0": _set(slice(90, 93), 0.0, "close", "open", "low"),
    "a negative price": _set(slice(90, 91), -5.0, "close"),
    "a bar of NaN": _set(slice(100, 101), np.nan, *_PRICES),
    "a NaN open": _set(slice(100, 103), np.nan, "open"),
    "a NaN high": _set(slice(100, 101), np.nan, "high"),
    "a NaN low": _set(slice(100, 104), np.nan, "low"),
    "a NaN close": _set(slice(100, 101), np.nan, "close"),
    "NaN from the first bar on": _set(slice(0, 3), np.nan, *_PRICES),
    "an infinite high": _set(slice(120, 121), np.inf, "high"),
    "an infinite close": _set(slice(120, 122), -np.inf, "close"),
    "huge volumes": _set(slice(50, 70), 3e17, "volume"),
}

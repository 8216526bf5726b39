"""Stationary features: what is in units of price becomes a ratio to the close of the same row.

33 of the 55 features of the usual spec are price levels. A market that doubles leaves the range of the scaler, and a model that
was good on the rows after the training is worse on later ones. The ratio is of one row alone, so batches and streams give the same
bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stoker.errors import OptionError

LEVELS = ("IDENT", "SMA", "EMA", "BOLLINGER_UPPER", "BOLLINGER_MIDDLE", "BOLLINGER_LOWER")
"""Operators whose result is a price where their source is one."""
DISTANCES = ("MOMENTUM", "VOLATILITY", "ATR", "MACD_LINE", "MACD_SIGNAL", "MACD_HISTOGRAM", "MARKET_DEPTH")
"""Operators whose result is a difference of prices where their source is one."""
OF_BARS = ("ATR", "MARKET_DEPTH")
"""Of these the source says nothing: they read the bar."""
PRICES = ("open", "high", "low", "close", "hlc", "hl", "ohlc", "ohlcv", "close_volume", "hlcv")

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Which columns are prices and differences of prices, and which one is the close."""

    close: int
    levels: tuple[int, ...]
    distances: tuple[int, ...] = ()


def levels_of(features: Iterable[Mapping[str, Any]]) -> Levels:
    """Of the features of a spec, as its JSON has them."""
    listed = list(features)
    close, levels, distances = None, [], []
    for column, feature in enumerate(listed):
        op, source = str(feature["op"]).upper(), feature.get("source", "close")
        if op == "IDENT" and source == "close" and close is None:
            close = column
        if source in PRICES or op in OF_BARS:
            if op in LEVELS:
                levels.append(column)
            elif op in DISTANCES:
                distances.append(column)
    if close is None:
        raise OptionError(f"stationary features are ratios to the close, but none of {len(listed)} features is IDENT of the close.")
    return Levels(close=close, levels=tuple(levels), distances=tuple(distances))


def ratios(x: Array, levels: Levels) -> Array:
    """Rows [..., f] with prices p as (p - close) / close, and their differences d as d / close; other columns as they are.

    The difference comes first: numbers that are near each other have one without rounding, so the ratio keeps its digits.
    """
    result = x.copy()
    close, lifted, divided = x[..., levels.close, None], list(levels.levels), list(levels.distances)
    result[..., lifted] = (x[..., lifted] - close) / close
    result[..., divided] = x[..., divided] / close
    return result

"""TA-Lib itself as an oracle (`make test-originals`), where it defines an operator as the exact arithmetic does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.recipes.tfa.indicators.markets import market

from stoker_recipes.tfa.indicators.engine import features

talib: Any = pytest.importorskip("talib", reason="TA-Lib is not installed: make test-originals")
pytestmark = pytest.mark.originals

BARS = market(3000, seed=5)
O, H, L, C, V = (BARS[name] for name in ("open", "high", "low", "close", "volume"))  # noqa: E741


def ours(op: str, **fields: float) -> Any:
    return features(BARS, {"features": [{"name": op, "op": op, **fields}]})[op]


@pytest.mark.promise("P11")
@pytest.mark.parametrize("window", [2, 5, 14, 50])
@pytest.mark.parametrize(
    ("op", "theirs"),
    [
        ("MOMENTUM", lambda w: talib.MOM(C, w)),
        ("ROC", lambda w: talib.ROC(C, w)),
        ("SMA", lambda w: talib.SMA(C, w)),
        ("EMA", lambda w: talib.EMA(C, w)),
        ("RSI", lambda w: talib.RSI(C, w)),
        ("VOLATILITY", lambda w: talib.STDDEV(C, w)),
        ("BOLLINGER_UPPER", lambda w: talib.BBANDS(C, w)[0]),
        ("BOLLINGER_MIDDLE", lambda w: talib.BBANDS(C, w)[1]),
        ("BOLLINGER_LOWER", lambda w: talib.BBANDS(C, w)[2]),
        ("ATR", lambda w: talib.ATR(H, L, C, w)),
        ("STOCHASTIC_K", lambda w: talib.STOCHF(H, L, C, w, 1)[0]),
        ("WILLIAMS_R", lambda w: talib.WILLR(H, L, C, w)),
        ("CCI", lambda w: talib.CCI(H, L, C, w)),
        ("MFI", lambda w: talib.MFI(H, L, C, V, w)),
    ],
)
def test_the_same_bars_are_ready_and_the_same_numbers_come(op: str, theirs: Any, window: int) -> None:
    found, expected = ours(op, window=window), theirs(window)
    expected = np.where((expected == 0) & (found == 50), 50, expected)  # where nothing moved, theirs falls to the bottom
    assert np.array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("op", ["MACD_LINE", "MACD_SIGNAL", "MACD_HISTOGRAM"])
def test_averages_that_begin_otherwise_end_alike(op: str) -> None:
    expected = dict(zip(("MACD_LINE", "MACD_SIGNAL", "MACD_HISTOGRAM"), talib.MACD(C), strict=True))[op]
    np.testing.assert_allclose(ours(op)[500:], expected[500:], rtol=1e-4, atol=1e-6)


def test_a_trend_that_begins_otherwise_ends_alike() -> None:
    np.testing.assert_allclose(ours("ADX")[1000:], talib.ADX(H, L, C, 14)[1000:], rtol=1e-4)
    assert int(np.isfinite(ours("ADX")).argmax()) == int(np.isfinite(talib.ADX(H, L, C, 14)).argmax())

"""Sentio's arithmetic gives the golden table, and its known faults; the exact one has none of them."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import pytest
from tests.recipes.tfa.indicators.golden import EDGE_BITS, EDGE_WINDOWS, GOLDEN, ROWS
from tests.recipes.tfa.indicators.markets import edge_markets, golden_bars
from tests.recipes.tfa.indicators.specs import all_operators

from stoker_recipes.tfa.indicators import operators
from stoker_recipes.tfa.indicators.engine import features
from stoker_recipes.tfa.indicators.operators import OPERATORS, FeatureSettings
from stoker_recipes.tfa.indicators.program import Assembly, Term
from stoker_recipes.tfa.indicators.sentio import FLAT, SentioAssembly

# Between builds of the original these differ more: its sums drift.
LOOSE = {"VOLATILITY": 2e-4, "BOLLINGER_UPPER": 2e-4, "BOLLINGER_LOWER": 2e-4, "AD_LINE": 2e-3}


def golden_spec() -> dict[str, Any]:
    return {"features": [{"name": op, "op": op, **fields} for op, (fields, _) in GOLDEN.items()]}


def test_every_operator_is_in_the_table() -> None:
    assert set(GOLDEN) == set(OPERATORS)


@pytest.mark.parametrize("op", GOLDEN)
def test_the_golden_table(op: str) -> None:
    fields, expected = GOLDEN[op]
    frame = features(golden_bars(), {"features": [{"name": op, "op": op, **fields}]}, compat="sentio")
    found = frame[op][list(ROWS)]
    assert np.array_equal(found == 0, np.array(expected) == 0)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=LOOSE.get(op, 0))


def edge_bits() -> dict[str, str]:
    """As golden.EDGE_BITS says."""
    hashes = {name: hashlib.sha256() for name in OPERATORS}
    for bars in edge_markets().values():
        for window in EDGE_WINDOWS:
            spec = all_operators(window=window, fast=3, slow=8, signal=4, d_period=window)
            frame = features(bars, spec, compat="sentio", threads=1)
            for name, found in hashes.items():
                found.update(np.where(np.isnan(frame[name]), np.float32("nan"), frame[name]).astype("<f4").tobytes())
    return {name: found.hexdigest()[:16] for name, found in hashes.items()}


@pytest.mark.promise("P11")
def test_odd_bars_have_the_bits_of_the_original() -> None:
    """Without movement, volume or range, with prices of 0 and below, NaN, and infinite ones."""
    found = edge_bits()
    assert [name for name in EDGE_BITS if found[name] != EDGE_BITS[name]] == []
    assert list(found) == list(EDGE_BITS)


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize(
    ("word", "other", "seen"),
    [
        ("repeated_mean", lambda self, a, window: a, {"ADX"}),  # the value itself, though it is the same but for rounding
        ("where", lambda self, a, b, first=0: self.multiply(a, b, first=first), {"PARKINSON", "CCI", "MFI", "VPT", "AD_LINE"}),
        ("larger", Assembly.larger, {"ATR", "GARMAN_KLASS"}),
        ("highest", Assembly.highest, {"STOCHASTIC_K", "STOCHASTIC_D", "WILLIAMS_R"}),
    ],
)
def test_negative_control_words_of_the_exact_arithmetic_are_found(
    monkeypatch: pytest.MonkeyPatch, word: str, other: Any, seen: set[str]
) -> None:
    monkeypatch.setattr(SentioAssembly, word, other)
    found = edge_bits()
    assert seen <= {name for name in EDGE_BITS if found[name] != EDGE_BITS[name]}


def _flow_in_one_division(make: SentioAssembly, on: FeatureSettings) -> Term:
    high, low, close = (make.column(name) for name in ("high", "low", "close"))
    apart, span = make.subtract(make.subtract(close, low), make.subtract(high, close)), make.subtract(high, low)
    return make.where(make.above(span, FLAT), make.multiply(make.divide(apart, span), make.column("volume")))


def _klass_of_squares(make: SentioAssembly, on: FeatureSettings) -> Term:
    logs = [make.logarithm(make.divide(make.column(a), make.column(b))) for a, b in (("high", "low"), ("close", "open"))]
    wide, far = (make.multiply(make.multiply(x, x), k) for x, k in zip(logs, (0.5, 2 * math.log(2) - 1), strict=True))
    term = make.subtract(wide, far, first=1)
    return make.root(make.larger(0.0, make.mean(term, on.window)))


@pytest.mark.promise("P11", control=True)
@pytest.mark.parametrize(("op", "wrong"), [("ORDER_FLOW", _flow_in_one_division), ("GARMAN_KLASS", _klass_of_squares)])
def test_negative_control_another_grouping_of_the_same_formula_is_found(
    monkeypatch: pytest.MonkeyPatch, op: str, wrong: Any
) -> None:
    monkeypatch.setattr(operators._Sentio, op.lower(), wrong)
    found = edge_bits()
    assert [name for name in EDGE_BITS if found[name] != EDGE_BITS[name]] == [op]


def rising() -> dict[str, np.ndarray[Any, Any]]:
    close = 100 + 0.1 * np.arange(100)
    return {"open": close, "high": close + 0.05, "low": close - 0.05, "close": close, "volume": np.full(100, 1000.0)}


def test_without_losses_sentio_says_0_and_the_exact_arithmetic_100() -> None:
    spec = {"features": [{"name": "RSI", "op": "RSI", "window": 14}, {"name": "MFI", "op": "MFI", "window": 14}]}
    assert features(rising(), spec, compat="sentio").values[50].tolist() == [0, 0]
    assert features(rising(), spec).values[50].tolist() == [100, 100]


def test_one_missing_close_ruins_sentio_for_ever_and_the_exact_arithmetic_for_a_window() -> None:
    bars = golden_bars()
    bars["close"][100] = np.nan
    names = ("SMA", "EMA", "RSI", "ZWIN", "VOLATILITY")
    spec = {"features": [{"name": name, "op": name, "window": 20} for name in names]}
    theirs = features(bars, spec, compat="sentio").values[100:]
    assert np.isnan(theirs[:, :2]).all()
    assert (theirs[1:, 2:] == 0).all()
    ours = features(bars, spec)
    assert not ours.ready[100].any()
    assert ours.ready[121:].all()
    assert ours.ready[102:, names.index("EMA")].all()
    whole = features(golden_bars(), spec)
    for name in ("SMA", "ZWIN", "VOLATILITY"):  # a window that the gap has left is as if it had never been
        np.testing.assert_allclose(ours[name][121:], whole[name][121:], rtol=1e-5)


def test_rows_before_emit_from_are_padded_by_sentio_only() -> None:
    spec = {**golden_spec(), "alignment_policy": {"emit_from_index": 64, "pad_value": -7.0}}
    theirs = features(golden_bars(), spec, compat="sentio")
    assert (theirs.values[:64] == -7).all()
    assert theirs.emit_from == 64
    assert not theirs.ready[:64].any()
    bare = features(golden_bars(), golden_spec(), compat="sentio")
    assert theirs.values[64:].tobytes() == bare.values[64:].tobytes()
    ours = features(golden_bars(), spec)
    assert ours.emit_from == 64
    assert ours["IDENT"][0] == 100

"""Sentio's arithmetic gives the golden table, and its known faults; the exact one has none of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.encode.indicators.golden import GOLDEN, ROWS
from tests.encode.indicators.markets import golden_bars

from stoker.encode.indicators.batch import features
from stoker.encode.indicators.operators.table import OPERATORS

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


def test_all_together_are_the_same_as_each_alone() -> None:
    together = features(golden_bars(), golden_spec(), compat="sentio")
    for op, (fields, _) in GOLDEN.items():
        alone = features(golden_bars(), {"features": [{"name": op, "op": op, **fields}]}, compat="sentio")
        assert together[op].tobytes() == alone[op].tobytes()


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

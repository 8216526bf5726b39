"""The stream: one bar at a time, in whatever form a bar comes."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.recipes.tfa.indicators.markets import market
from tests.recipes.tfa.indicators.specs import all_operators, minimal_spec

from stoker.errors import BadValueError, OptionError
from stoker_recipes.tfa.indicators.engine import FeatureStream, features

Bar = namedtuple("Bar", "open high low close volume")
SPEC = all_operators(window=4)


@pytest.mark.parametrize(
    "form",
    [
        lambda row: row,
        lambda row: tuple(row.values()),
        lambda row: list(row.values()),
        lambda row: np.array(list(row.values())),
        lambda row: Bar(**row),
        lambda row: pd.Series(row),
        lambda row: {**row, "symbol": "IBM"},
        lambda row: np.array([tuple(row.values())], dtype=[(name, "f8") for name in row])[0],
    ],
)
def test_a_bar_in_any_form(form: Any) -> None:
    bars = market(30)
    stream = FeatureStream(SPEC)
    rows = [stream.push(form({name: float(values[i]) for name, values in bars.items()})) for i in range(30)]
    assert np.array(rows).tobytes() == features(bars, SPEC).values.tobytes()
    assert (rows[0].dtype, rows[0].shape) == (np.float32, (32,))


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_ready_is_that_of_the_last_bar(compat: str | None) -> None:
    bars = market(250)
    frame = features(bars, minimal_spec(), compat=compat)
    stream = FeatureStream(minimal_spec(), compat=compat)
    assert (stream.names, stream.emit_from, stream.num_bars) == (frame.names, frame.emit_from, 0)
    assert not stream.ready.any()
    for i in range(250):
        stream.push({"close": bars["close"][i]})
        assert stream.ready.tolist() == frame.ready[i].tolist()
    assert stream.num_bars == 250


@pytest.mark.parametrize("missing", [None, np.nan, float("inf")])
def test_a_missing_value_is_not_ready_and_forgotten(missing: Any) -> None:
    stream = FeatureStream({"features": [{"name": "e", "op": "EMA", "window": 2}]})
    rows = [stream.push({"close": close})[0] for close in (1.0, 2.0, missing, 4.0)]
    assert np.isnan(rows).tolist() == [True, False, True, False]
    assert not stream.ready.any() or stream.num_bars == 4
    whole = FeatureStream({"features": [{"name": "e", "op": "EMA", "window": 2}]})
    assert [whole.push([0, 0, 0, close, 0])[0] for close in (1.0, 2.0, 4.0)][-1] == rows[-1]


def test_a_reset_begins_another_series() -> None:
    stream = FeatureStream(SPEC)
    once = stream.extend(market(50))
    stream.reset()
    assert stream.num_bars == 0
    assert stream.extend(market(50)).tobytes() == once.tobytes()


@pytest.mark.parametrize(
    ("bar", "message"),
    [
        ({"open": 1.0}, "bar 0 has no 'close', which the spec needs"),
        ({"close": "1.5x"}, "'close' of bar 0 is '1.5x', which is not numeric"),
        ({"close": [1, 2]}, r"'close' of bar 0 is '\[1, 2\]', which is not numeric"),
        ([1.0, 2.0], r"a bar is a mapping or 5 numbers \(open, high, low, close, volume\); found 2"),
        (7.0, "a bar is a mapping or 5 numbers, not float"),
    ],
)
def test_an_invalid_bar_is_an_error_and_changes_nothing(bar: Any, message: str) -> None:
    stream = FeatureStream({"features": [{"name": "c", "op": "IDENT"}]})
    with pytest.raises((OptionError, BadValueError), match=message):
        stream.push(bar)
    assert stream.num_bars == 0
    assert stream.push({"close": 3.0}).tolist() == [3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sums": np.zeros((1, 1))}, "the state belongs to another spec: sums is float64 of shape"),
        ({"lanes": np.zeros(3, dtype=np.int8)}, "lanes is int8 of shape"),
        ({"registers": None}, "registers is object of shape"),
        ({"last": None}, r"the state is damaged: last is object of shape \(\), expected float32 of \(1, 32\)"),
    ],
)
def test_a_state_that_is_damaged_is_refused(change: Any, message: str) -> None:
    stream = FeatureStream(SPEC)
    with pytest.raises(OptionError, match=message):
        stream.restore({**stream.state(), **change})

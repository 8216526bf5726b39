"""The laws of indicators, for any spec and any bars: cuts, blocks and pushes do not matter, the future does not matter, and
neither does any other series."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.tfa.indicators.markets import Bars, market, troubled_markets
from tests.recipes.tfa.indicators.specs import all_operators, any_specs

from stoker_recipes.tfa.indicators import engine as engines
from stoker_recipes.tfa.indicators.engine import FeatureEngine, FeatureStream, compile_spec, features
from stoker_recipes.tfa.indicators.operators import OPERATORS
from stoker_recipes.tfa.indicators.spec import Spec, parse_spec

pytestmark = pytest.mark.promise("P12")

Array = npt.NDArray[Any]

MODES = st.sampled_from([None, "sentio"])
EVERY_OPERATOR = [{"features": [one]} for one in all_operators()["features"]]
BOTH_MODES = pytest.mark.parametrize("compat", [None, "sentio"])


def in_pieces(spec: Spec, bars: Bars, cuts: Sequence[int], *, block: int = engines.BLOCK, forget: bool = False) -> Array:
    """The features of bars that come in pieces, with blocks of any length; `forget` loses the state between pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "BLOCK", block)
        engine = FeatureEngine(compile_spec(spec))
    num_bars = len(bars["close"])
    sources = np.array([bars[name] for name in engine.program.sources])
    out = np.empty((num_bars, len(spec.features)), dtype=np.float32)
    bounds = [0, *sorted(cuts), num_bars]
    for start, stop in itertools.pairwise(bounds):
        engine.advance(np.ascontiguousarray(sources[:, start:stop]), out[start:stop])
        if forget:
            engine.reset()
    return out


def pushed(spec: Spec, bars: Bars) -> Array:
    stream = FeatureStream(spec)
    rows = [stream.push({name: values[i] for name, values in bars.items()}) for i in range(len(bars["close"]))]
    return np.array(rows, dtype=np.float32).reshape(-1, len(spec.features))


def same(found: Array, expected: Array) -> bool:
    return found.shape == expected.shape and np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(expected).tobytes()


@given(data=st.data(), bars=troubled_markets(), content=any_specs(), compat=MODES)
def test_cuts_and_blocks_do_not_matter(data: st.DataObject, bars: Bars, content: Any, compat: str | None) -> None:
    spec = parse_spec(content, compat=compat)
    cuts = data.draw(st.lists(st.integers(0, len(bars["close"])), max_size=6))
    block = data.draw(st.sampled_from([1, 2, 7, 64]) | st.integers(1, 600))
    assert same(in_pieces(spec, bars, cuts, block=block), features(bars, spec).values)


@given(bars=troubled_markets(150), content=any_specs(), compat=MODES)
@settings(max_examples=num_examples(60))
def test_a_stream_gives_the_rows_of_the_batch(bars: Bars, content: Any, compat: str | None) -> None:
    spec = parse_spec(content, compat=compat)
    assert same(pushed(spec, bars), features(bars, spec).values)


@BOTH_MODES
@pytest.mark.parametrize("content", EVERY_OPERATOR, ids=list(OPERATORS))
def test_every_operator_has_the_same_bits_in_batch_blocks_and_stream(content: Any, compat: str | None) -> None:
    """Beyond the bar where sums start anew, and over a gap."""
    bars = market(2200, seed=3)
    for values in bars.values():
        values[1000:1030] = np.nan
    spec = parse_spec(content, compat=compat)
    whole = features(bars, spec).values
    assert same(in_pieces(spec, bars, [1, 2, 700, 1023, 1024, 1025], block=100), whole)
    assert same(pushed(spec, bars), whole)


@BOTH_MODES
def test_negative_control_a_state_that_is_lost_is_seen(compat: str | None) -> None:
    bars = market(100)
    for content in EVERY_OPERATOR:
        spec = parse_spec(content, compat=compat)
        whole = features(bars, spec).values
        assert same(in_pieces(spec, bars, [50]), whole)
        one_bar = content["features"][0]["op"] in ("IDENT", "SPREAD_BP", "ORDER_FLOW", "MARKET_DEPTH", "BID_ASK_RATIO")
        assert same(in_pieces(spec, bars, [50], forget=True), whole) == one_bar, content


def sees_the_future(compute: Callable[[Bars], Array], bars: Bars, now: int) -> bool:
    """Whether rows up to `now` change with later bars."""
    later = {name: values.copy() for name, values in bars.items()}
    for name, values in market(len(bars["close"]), seed=99).items():
        later[name][now + 1 :] = values[now + 1 :] * 3
    return not same(compute(bars)[: now + 1], compute(later)[: now + 1])


@given(data=st.data(), bars=troubled_markets(), content=any_specs(), compat=MODES)
@settings(max_examples=num_examples(60))
def test_the_future_does_not_matter(data: st.DataObject, bars: Bars, content: Any, compat: str | None) -> None:
    spec = parse_spec(content, compat=compat)
    now = data.draw(st.integers(-1, len(bars["close"]) - 1))
    assert not sees_the_future(lambda given: features(given, spec).values, bars, now)


def test_negative_control_a_feature_that_looks_ahead_is_seen() -> None:
    def centered(bars: Bars) -> Array:
        return np.convolve(bars["close"], [1 / 3, 1 / 3, 1 / 3], mode="same").astype(np.float32)

    assert sees_the_future(centered, market(50), 20)


@given(
    data=st.data(),
    parts=st.lists(troubled_markets(60), min_size=1, max_size=6),
    content=any_specs(5),
    compat=MODES,
    threads=st.integers(1, 3),
)
@settings(max_examples=num_examples(60))
def test_other_series_do_not_matter(data: st.DataObject, parts: list[Bars], content: Any, compat: str | None, threads: int) -> None:
    """One behind the other, or their rows in any order that keeps that of each."""
    spec = parse_spec(content, compat=compat)
    keys = np.repeat(np.arange(len(parts)), [len(part["close"]) for part in parts])
    if data.draw(st.booleans()):
        keys = np.random.default_rng(data.draw(st.integers(0, 99))).permutation(keys)
    order = np.argsort(keys, kind="stable")
    table: dict[str, Any] = {name: np.empty(len(keys)) for name in parts[0]}
    for name, values in table.items():
        values[order] = np.concatenate([part[name] for part in parts])
    frame = features({**table, "symbol": keys}, spec, series="symbol", threads=threads)
    for number, part in enumerate(parts):
        assert same(frame.values[keys == number], features(part, spec).values)


def test_negative_control_bars_that_are_taken_for_one_series_are_seen() -> None:
    parts = [market(60, seed=1), market(60, seed=2)]
    spec = parse_spec(all_operators(window=5))
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert not same(features(joined, spec).values[60:], features(parts[1], spec).values)


@given(data=st.data(), bars=troubled_markets(200), content=any_specs(), compat=MODES)
@settings(max_examples=num_examples(40))
def test_a_stream_resumes_from_its_state(data: st.DataObject, bars: Bars, content: Any, compat: str | None) -> None:
    spec = parse_spec(content, compat=compat)
    now = data.draw(st.integers(0, len(bars["close"])))
    first = FeatureStream(spec)
    before = first.extend({name: values[:now] for name, values in bars.items()})
    second = FeatureStream(spec)
    second.restore(first.state())
    after = second.extend({name: values[now:] for name, values in bars.items()})
    assert same(np.concatenate([before, after]), features(bars, spec).values)

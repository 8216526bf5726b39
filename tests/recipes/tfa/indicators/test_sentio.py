"""Sentio's arithmetic is, bit for bit, that of a slow twin, and that of plain C compiled with -O2.

Both were written here; that they and the kernel are what the original is, is known from test_engine.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from benchmarks.before.sentio_features import SentioBuilder, compiler
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.tfa.indicators.markets import edge_markets, golden_bars, market, troubled_markets
from tests.recipes.tfa.indicators.sentio_twin import SentioTwin
from tests.recipes.tfa.indicators.specs import all_operators, any_specs, minimal_spec

from stoker_recipes.tfa.indicators.engine import features
from stoker_recipes.tfa.indicators.operators import OPERATORS
from stoker_recipes.tfa.indicators.spec import parse_spec


def same_bits(found: Any, expected: Any) -> Any:
    """Equal bit for bit; one NaN is as good as another."""
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    return (found.view(np.int32) == expected.view(np.int32)) | (np.isnan(found) & np.isnan(expected))


def check_against_twin(bars: dict[str, Any], spec: Any) -> None:
    read = parse_spec(spec, compat="sentio")
    frame, twin = features(bars, read), SentioTwin(bars)
    for feature in read.features:
        equal = same_bits(frame[feature.name], twin.compute(feature.operator.name, feature.settings))
        assert equal.all(), f"{feature.name} from bar {equal.argmin()} on"


@pytest.mark.parametrize("window", [1, 2, 14, 37])
def test_every_operator_has_the_bits_of_its_twin(window: int) -> None:
    check_against_twin(market(200, window), all_operators(window=window))
    check_against_twin(golden_bars(120), all_operators(window=window, k=1.5, fast=3, slow=7, signal=2, d_period=window))


@given(bars=troubled_markets(90), spec=any_specs(4))
@settings(max_examples=num_examples(60))
def test_any_spec_has_the_bits_of_the_twin_over_any_bars(bars: dict[str, Any], spec: Any) -> None:
    check_against_twin(bars, spec)


@pytest.mark.promise("P11", control=True)
def test_the_twin_can_disagree() -> None:
    bars = market(100)
    twin = SentioTwin(bars)
    spec = parse_spec(all_operators(window=5), compat="sentio")
    frame = features(bars, spec)
    bars["close"][50] += 0.01
    bars["volume"][50] += 1
    bars["high"][50] += 1
    other = SentioTwin(bars)
    for feature in spec.features:
        name, on = feature.operator.name, feature.settings
        assert same_bits(frame[name], twin.compute(name, on)).all()
        assert not same_bits(frame[name], other.compute(name, on)).all(), name


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> SentioBuilder:
    if compiler() is None:
        pytest.skip("no C compiler")
    return SentioBuilder(tmp_path_factory.mktemp("sentio"))


@pytest.mark.promise("P11")
@pytest.mark.parametrize("by_row", [True, False])
def test_the_55_features_are_those_of_plain_c(builder: SentioBuilder, by_row: bool) -> None:
    spec = parse_spec(minimal_spec(), compat="sentio")
    bars = market(50_000)
    assert features(bars, spec).values.tobytes() == builder.build(bars, spec, by_row=by_row).tobytes()


@pytest.mark.parametrize("window", [1, 5, 20])
def test_every_operator_is_that_of_plain_c(builder: SentioBuilder, window: int) -> None:
    spec = parse_spec(all_operators(window=window), compat="sentio")
    bars = market(20_000, seed=window)
    found, expected = features(bars, spec), builder.build(bars, spec)
    for i, name in enumerate(OPERATORS):
        assert found[name].tobytes() == expected[:, i].tobytes(), name


@pytest.mark.parametrize("num_bars", [0, 1, 13, 400])
def test_bars_without_movement_or_volume_are_those_of_plain_c(builder: SentioBuilder, num_bars: int) -> None:
    spec = parse_spec(all_operators(), compat="sentio")
    flat = {name: np.full(num_bars, 50.25) for name in ("open", "high", "low", "close")} | {"volume": np.zeros(num_bars)}
    for bars in (flat, {**flat, "volume": np.full(num_bars, 1000.5)}, market(num_bars, 7)):
        assert same_bits(features(bars, spec).values, builder.build(bars, spec)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -5.0])
def test_a_close_that_is_none_does_to_the_55_features_what_it_does_in_c(builder: SentioBuilder, value: float) -> None:
    spec = parse_spec(minimal_spec(), compat="sentio")
    bars = market(600)
    bars["close"][200] = value
    assert same_bits(features(bars, spec).values, builder.build(bars, spec)).all()


@pytest.mark.parametrize("name", edge_markets())
def test_odd_bars_are_those_of_plain_c_and_of_the_twin(builder: SentioBuilder, name: str) -> None:
    bars = edge_markets()[name]
    for window in (1, 20):
        content = all_operators(window=window, d_period=window)
        spec = parse_spec(content, compat="sentio")
        assert same_bits(features(bars, spec).values, builder.build(bars, spec)).all()
        if len(bars["close"]) <= 240:
            check_against_twin(bars, content)


@pytest.mark.soak
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_a_million_bars_are_those_of_plain_c(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    built = SentioBuilder(Path(tmp_path_factory.mktemp("soak")))
    for content in (minimal_spec(), all_operators()):
        spec = parse_spec(content, compat="sentio")
        bars = market(1_000_000, seed)
        assert features(bars, spec).values.tobytes() == built.build(bars, spec).tobytes()

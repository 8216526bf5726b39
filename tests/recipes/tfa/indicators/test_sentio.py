"""Sentio's arithmetic is, bit for bit, that of plain C compiled with -O2; that both are what the original is, test_engine.py says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from benchmarks.before.sentio_features import SentioBuilder, compiler
from benchmarks.tfa.bench_indicators import spec_of_55
from hypothesis import given, settings
from tests.harness import num_examples
from tests.recipes.tfa.indicators.markets import edge_markets, golden_bars, market, troubled_markets
from tests.recipes.tfa.indicators.specs import all_operators, any_specs

from stoker_recipes.tfa.indicators.engine import features
from stoker_recipes.tfa.indicators.spec import parse_spec


def same_bits(found: Any, expected: Any) -> Any:
    """Equal bit for bit; one NaN is as good as another."""
    found, expected = np.ascontiguousarray(found), np.ascontiguousarray(expected)
    return (found.view(np.int32) == expected.view(np.int32)) | (np.isnan(found) & np.isnan(expected))


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> SentioBuilder:
    if compiler() is None:
        pytest.skip("no C compiler")
    return SentioBuilder(tmp_path_factory.mktemp("sentio"))


def assert_equals_c(builder: SentioBuilder, bars: dict[str, Any], content: Any) -> None:
    spec = parse_spec(content, compat="sentio")
    frame, expected = features(bars, spec), builder.build(bars, spec)
    for i, feature in enumerate(spec.features):
        equal = same_bits(frame.values[:, i], expected[:, i])
        assert equal.all(), f"{feature.name} from bar {equal.argmin()} on"


@pytest.mark.parametrize("window", [1, 2, 14, 37])
def test_every_operator_has_the_bits_of_plain_c(builder: SentioBuilder, window: int) -> None:
    assert_equals_c(builder, market(20_000, window), all_operators(window=window))
    assert_equals_c(builder, golden_bars(120), all_operators(window=window, k=1.5, fast=3, slow=7, signal=2, d_period=window))


@given(bars=troubled_markets(90), spec=any_specs(4))
@settings(max_examples=num_examples(60))
def test_any_spec_has_the_bits_of_plain_c_over_any_bars(builder: SentioBuilder, bars: dict[str, Any], spec: Any) -> None:
    assert_equals_c(builder, bars, spec)


@pytest.mark.promise("P11", control=True)
def test_plain_c_can_disagree(builder: SentioBuilder) -> None:
    bars = market(100)
    spec = parse_spec(all_operators(window=5), compat="sentio")
    found = features(bars, spec).values
    for name, more in (("close", 0.01), ("volume", 1), ("high", 1)):
        bars[name][50] += more
    assert not same_bits(found, builder.build(bars, spec)).all(axis=0).any()


@pytest.mark.promise("P11")
@pytest.mark.parametrize("by_row", [True, False])
def test_the_55_features_are_those_of_plain_c(builder: SentioBuilder, by_row: bool) -> None:
    spec = parse_spec(spec_of_55(), compat="sentio")
    bars = market(50_000)
    assert features(bars, spec).values.tobytes() == builder.build(bars, spec, by_row=by_row).tobytes()


@pytest.mark.parametrize("name", edge_markets())
def test_odd_bars_are_those_of_plain_c(builder: SentioBuilder, name: str) -> None:
    bars = edge_markets()[name]
    for window in (1, 20):
        content = all_operators(window=window, d_period=window)
        assert_equals_c(builder, bars, content)


@pytest.mark.soak
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10)
def test_a_million_bars_are_those_of_plain_c(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    built = SentioBuilder(Path(tmp_path_factory.mktemp("soak")))
    for content in (spec_of_55(), all_operators()):
        spec = parse_spec(content, compat="sentio")
        bars = market(1_000_000, seed)
        assert features(bars, spec).values.tobytes() == built.build(bars, spec).tobytes()

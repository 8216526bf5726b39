"""Instructions: the kernels agree about their numbers, and definitions share what they have in common."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.encode.indicators.markets import market
from tests.encode.indicators.specs import all_operators, minimal_spec

from stoker.encode.indicators import exact, sentio
from stoker.encode.indicators import program as instructions
from stoker.encode.indicators.engine import compile_spec, features
from stoker.encode.indicators.spec import parse_spec


@pytest.mark.parametrize("kernels", [exact, sentio])
def test_the_numbers_of_instructions_are_those_of_the_shared_ones(kernels: object) -> None:
    assert vars(kernels)["_HIGHEST"] == instructions.HIGHEST  # type: ignore[arg-type]
    assert vars(kernels)["_DISTANCE"] == instructions.DISTANCE  # type: ignore[arg-type]
    own = {value for name, value in vars(kernels).items() if name.isupper() and isinstance(value, int) and "ROWS" not in name}  # type: ignore[arg-type]
    shared = {value for name, value in vars(instructions).items() if name.isupper() and isinstance(value, int)}
    assert min(own - {instructions.HIGHEST, instructions.DISTANCE}) > max(shared)
    assert max(shared - {instructions.HIGHEST, instructions.DISTANCE}) < instructions.HIGHEST


@pytest.mark.parametrize("kernels", [exact, sentio])
def test_a_kernel_changes_when_the_shared_text_does(kernels: Any) -> None:
    """Else a machine that has compiled it before would go on with the old one."""
    text = Path(instructions.__file__).read_bytes()
    assert hashlib.sha256(text).hexdigest()[:16] == kernels.SHARED_TEXT, "write this into SHARED_TEXT of the kernel"


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_features_share_what_they_have_in_common(compat: str | None) -> None:
    one = {"features": [{"name": "a", "op": "MACD_HISTOGRAM"}]}
    three = {"features": [{"name": op, "op": op} for op in ("MACD_LINE", "MACD_SIGNAL", "MACD_HISTOGRAM")]}
    programs = [compile_spec(parse_spec(content, compat=compat)) for content in (one, three)]
    assert programs[0].num_live == programs[1].num_live
    assert compile_spec(parse_spec(minimal_spec(), compat=compat)).sources == ("close",)
    assert len(compile_spec(parse_spec(minimal_spec(), compat=compat)).instructions) < 25


def test_lanes_that_stand_side_by_side_are_copied_together() -> None:
    program = compile_spec(parse_spec(minimal_spec()))
    lanes = [run for run in program.runs.tolist() if run[2] > 1]
    assert lanes == [[0, 2, 24], [24, 46, 8], [0, 26, 9]]


def test_the_order_of_features_does_not_change_them() -> None:
    content = all_operators(window=6)
    backwards = {"features": content["features"][::-1]}
    bars = market(150)
    for compat in (None, "sentio"):
        frame, other = features(bars, content, compat=compat), features(bars, backwards, compat=compat)
        assert frame.values.tobytes() == np.ascontiguousarray(other.values[:, ::-1]).tobytes()


def test_the_largest_of_any_window() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 200).astype(np.float64)
    x[60] = np.nan
    for window in range(1, 40):
        y = np.empty(200 - window + 1)
        instructions.highest(x, window, np.empty(200), y)  # in plain Python
        expected = [np.max(x[i : i + window]) for i in range(len(y))]
        np.testing.assert_array_equal(y, expected)

"""Instructions: the kernels agree about their numbers, and definitions share what they have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.recipes.tfa.indicators.specs import minimal_spec

from stoker import _kernels
from stoker_recipes.tfa.indicators import exact, sentio
from stoker_recipes.tfa.indicators import program as instructions
from stoker_recipes.tfa.indicators.engine import compile_spec
from stoker_recipes.tfa.indicators.spec import parse_spec


@pytest.mark.parametrize("kernels", [exact, sentio])
def test_a_kernel_is_compiled_again_when_the_shared_instructions_change(kernels: Any) -> None:
    """Else a machine that has compiled it before would use the old one."""
    found = _kernels._dependencies(kernels.advance.py_func)
    assert _kernels._source_hash(instructions.__file__) in found
    assert _kernels._source_hash(kernels.__file__) in found
    assert f"HIGHEST = {instructions.HIGHEST}" in found


@pytest.mark.parametrize("compat", [None, "sentio"])
def test_features_share_what_they_have_in_common(compat: str | None) -> None:
    one = {"features": [{"name": "a", "op": "MACD_HISTOGRAM"}]}
    three = {"features": [{"name": op, "op": op} for op in ("MACD_LINE", "MACD_SIGNAL", "MACD_HISTOGRAM")]}
    programs = [compile_spec(parse_spec(content, compat=compat)) for content in (one, three)]
    assert programs[0].num_live == programs[1].num_live
    assert compile_spec(parse_spec(minimal_spec(), compat=compat)).sources == ("close",)
    assert len(compile_spec(parse_spec(minimal_spec(), compat=compat)).instructions) < 25


def test_the_largest_of_any_window() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 200).astype(np.float64)
    x[60] = np.nan
    for window in range(1, 40):
        y = np.empty(200 - window + 1)
        instructions.highest(x, window, np.empty(200), y)  # in plain Python
        expected = [np.max(x[i : i + window]) for i in range(len(y))]
        np.testing.assert_array_equal(y, expected)

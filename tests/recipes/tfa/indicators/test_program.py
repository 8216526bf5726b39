"""Instructions: the kernels agree about their numbers, and definitions share what they have in common."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stoker import _kernels
from stoker_recipes.tfa.indicators import exact, sentio
from stoker_recipes.tfa.indicators import program as instructions


def test_the_largest_of_any_window() -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, 200).astype(np.float64)
    x[60] = np.nan
    for window in range(1, 40):
        y = np.empty(200 - window + 1)
        instructions.highest(x, window, np.empty(200), y)  # in plain Python
        expected = [np.max(x[i : i + window]) for i in range(len(y))]
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("kernels", [exact, sentio])
def test_a_kernel_is_compiled_again_when_the_shared_instructions_change(kernels: Any) -> None:
    """Else a machine that has compiled it before would use the old one."""
    found = _kernels._dependencies(kernels.advance.py_func)
    assert _kernels._source_hash(instructions.__file__) in found
    assert _kernels._source_hash(kernels.__file__) in found
    assert f"HIGHEST = {instructions.HIGHEST}" in found

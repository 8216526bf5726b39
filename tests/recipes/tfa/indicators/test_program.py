"""Instructions: the kernels agree about their numbers, and definitions share what they have in common."""

from __future__ import annotations

from typing import Any

import pytest

from stoker import _kernels
from stoker_recipes.tfa.indicators import exact, sentio
from stoker_recipes.tfa.indicators import program as instructions


@pytest.mark.parametrize("kernels", [exact, sentio])
def test_a_kernel_is_compiled_again_when_the_shared_instructions_change(kernels: Any) -> None:
    """Else a machine that has compiled it before would use the old one."""
    found = _kernels._dependencies(kernels.advance.py_func)
    assert _kernels._source_hash(instructions.__file__) in found
    assert _kernels._source_hash(kernels.__file__) in found
    assert f"HIGHEST = {instructions.HIGHEST}" in found

"""Parts of a kernel: plain functions that are compiled into the kernel that calls them, and into nothing else.

Each kernel of its own costs a tenth of a second when it is compiled, for an entry from Python that nobody uses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba.extending import register_jitable

F = TypeVar("F", bound=Callable[..., object])


def part(function: F) -> F:
    """Let kernels call a function, with the arithmetic of NumPy; in Python it stays what it is."""
    known: F = register_jitable(error_model="numpy")(function)
    return known

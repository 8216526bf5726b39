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
    # No passes that would find nothing to do, and no ways in from outside: together 5 % of the time to compile.
    known: F = register_jitable(error_model="numpy", no_rewrites=True, no_cfunc_wrapper=True, no_cpython_wrapper=True)(function)
    return known

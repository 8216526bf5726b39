"""THE compiler of kernels: compiled once a machine and kept on disk, free of the GIL, with the arithmetic of NumPy.

Kernels have no parallel loops: threads work on different batches instead (nested thread pools collapse on a busy machine).
The cache of a kernel is renewed when its own file changes, not when a constant of another file does: such numbers are
passed as arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., object])


def kernel(function: F) -> F:
    """Compile a function on its first call, or load it from the cache."""
    compiled: F = njit(nogil=True, cache=True, error_model="numpy")(function)
    return compiled

"""THE compiler of kernels: compiled once a machine and kept on disk, free of the GIL, with the arithmetic of NumPy.

Kernels have no parallel loops: threads work on different batches instead (nested thread pools collapse on a busy machine).
The cache of a kernel is renewed when its own file changes, not when a constant of another file does: such numbers are
passed as arguments.

Compiling takes seconds, so the first kernel that a process has to compile is announced on a terminal: numba tells its
listeners of each compilation and of nothing else, so that calls and loads from the cache cost nothing and say nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from numba import njit
from numba.core import event

F = TypeVar("F", bound=Callable[..., object])

ANNOUNCE = "STOKER_ANNOUNCE"
"""The environment variable that decides where it is set: 1 announces everywhere, 0 nowhere."""

_LINE = "stoker: compiling kernels for this machine; this takes some seconds, once …\n"


def kernel(function: F) -> F:
    """Compile a function on its first call, or load it from the cache."""
    compiled: F = njit(nogil=True, cache=True, error_model="numpy")(function)
    _announcer.kernels.add(compiled)
    return compiled


class _Announcer(event.Listener):  # type: ignore[misc]
    """Writes one line when the first kernel of this file is compiled. Numba compiles under a lock, so nobody else is here."""

    def __init__(self) -> None:
        self.kernels: set[object] = set()
        self._said = False

    def on_start(self, event: Any) -> None:
        """A function is not in the cache and is about to be compiled; it may be one of somebody else."""
        if self._said or event.data["dispatcher"] not in self.kernels:
            return
        self._said = True
        stream, asked = sys.stderr, os.environ.get(ANNOUNCE, "")
        if stream is None or asked == "0":
            return
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, or closed, is no reason not to compile
            if asked or stream.isatty():
                stream.write(_LINE)
                stream.flush()

    def on_end(self, event: Any) -> None:
        """Nothing to say."""


_announcer = _Announcer()
event.register("numba:compile", _announcer)

"""Ctrl-C during a search: never while a trial is claimed or kept, and never lost.

Python turns the signal into an exception wherever the main thread happens to be. In a destructor Python prints the exception and
continues, so the signal is remembered. Where it comes while Optuna reads its journal, the search reads the journal again.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from stoker._signals import stop


class Interrupts:
    """A context manager around a search. In a thread, or where the program has its own handler, it changes nothing."""

    def __init__(self) -> None:
        self.asked = False
        """Whether Ctrl-C was pressed."""
        self._before: Any = None  # the handler that this one replaces
        self._is_held = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and (before := signal.getsignal(signal.SIGINT)) in (signal.default_int_handler, stop):
            signal.signal(signal.SIGINT, self._handle)
            self._before = before
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise a Ctrl-C that waited or was lost."""
        if self.asked:
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let a first Ctrl-C wait within this block; a second one does not."""
        self._is_held = True
        try:
            yield
        finally:
            self._is_held = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first, self.asked = not self.asked, True
        if not (is_first and self._is_held):
            raise KeyboardInterrupt

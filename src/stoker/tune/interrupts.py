"""Ctrl-C during a search: never within a transaction, and never lost.

Python turns the signal into an exception wherever the main thread happens to be. Within a transaction that would leave a lock, and within
a destructor Python prints the exception and continues. Here the signal is also remembered, and raised again where it does no harm.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Self


class Interrupts:
    """A context manager around a search. In a thread, or where the program has its own handler, it changes nothing."""

    def __init__(self) -> None:
        self.asked = False
        """Whether Ctrl-C was pressed."""
        self._held = False
        self._is_ours = False

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._handle)
            self._is_ours = True
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._is_ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        is_first, self.asked = not self.asked, True
        if not (self._held and is_first):
            raise KeyboardInterrupt

    @contextmanager
    def held(self) -> Iterator[None]:
        """The first Ctrl-C within the block waits for its end; a second one does not."""
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

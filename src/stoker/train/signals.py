"""Signals: Ctrl-C, SIGTERM and SIGHUP ask a run to end; the loop finishes its step, saves and leaves.

The law: the first signal changes nothing but `asked`, so no step and no save is torn; a Ctrl-C after it ends at once. A signal
that was ignored before (as under nohup) stays ignored, and all handlers are put back.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """A context manager around a loop. Only the main thread can have handlers: in any other it does nothing."""

    def __init__(self) -> None:
        self.asked: int | None = None
        """The number of the first signal that came, or None."""
        self._before: dict[signal.Signals, Any] = {}

    @property
    def exit_code(self) -> int:
        """What a command that was asked to end returns to its shell: 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP."""
        return 0 if self.asked is None else 128 + self.asked

    @property
    def name(self) -> str:
        """The first signal as people call it, or an empty text."""
        return "" if self.asked is None else signal.Signals(self.asked).name

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                found = signal.getsignal(number)
                # None is a handler that is not Python's: it could not be put back.
                if found is not None and found is not signal.SIG_IGN:
                    self._before[number] = found
                    signal.signal(number, self._handle)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked is None:
            self.asked = number
        elif number == signal.SIGINT:
            raise KeyboardInterrupt

"""Ctrl-C during a search: never while a trial is claimed or kept, and never lost.

Python turns the signal into an exception wherever the main thread happens to be. In the storage of Optuna that would skip a record, and
in a destructor Python prints the exception and continues. So a signal in such code is tried again shortly after, and remembered.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from stoker._signals import stop

UNINTERRUPTED = ("optuna.", "stoker.tune.storage")
"""Modules in which a signal waits, if they were called by the search or its objective."""
CALLERS = ("stoker.tune.search_loop", "stoker.tune.objective")
AGAIN_SECONDS = 0.02


class Interrupts:
    """A context manager around a search. In a thread, or where the program has its own handler, it changes nothing."""

    def __init__(self) -> None:
        self.asked = False
        """Whether Ctrl-C was pressed."""
        self._before: Any = None  # the handler that this one replaces
        self._is_retry = self._has_ended = False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> Self:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and (before := signal.getsignal(signal.SIGINT)) in (signal.default_int_handler, stop):
            signal.signal(signal.SIGINT, self._handle)
            self._before = before
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def check(self) -> None:
        """Raise a Ctrl-C that was delayed or lost."""
        if self.asked:
            self.end()
            raise KeyboardInterrupt

    def end(self) -> None:
        """Only remember signals from now on, so that what is left to do is done."""
        self._has_ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer.join()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        waits = self._is_retry or not self.asked  # a second Ctrl-C does not wait
        self.asked, self._is_retry = True, False
        if self._has_ended:
            return
        if not (waits and _is_uninterrupted(frame)):
            raise KeyboardInterrupt
        self._timer = threading.Timer(AGAIN_SECONDS, self._try_again)
        self._timer.daemon = True
        self._timer.start()

    def _try_again(self) -> None:
        self._is_retry = True
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


def _is_uninterrupted(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.startswith(UNINTERRUPTED):
            return True
        if module in CALLERS:
            return False
        frame = frame.f_back
    return False

"""Ctrl-C, SIGTERM and SIGHUP in the commands of `stoker`."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
AGAIN_SECONDS = 0.02  # until a signal whose error was lost comes again: longer than a destructor or a callback of a library takes


class Terminated(BaseException):
    """The process received SIGTERM or SIGHUP: a terminal that is closed."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.number = number


def handle_stops() -> None:
    """Let these signals call `stop`, unless they are ignored, as by nohup."""
    for number in STOPS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, stop)
    _raised.clear()
    if not isinstance(sys.unraisablehook, _LostStops):
        sys.unraisablehook = _LostStops()


class _LostStops:
    """A hook for errors that Python cannot raise: sends a signal again whose error is among them.

    In a destructor, or in a callback that C code calls (as LLVM does while a kernel is compiled), Python prints an error and continues: the
    command would not end.
    """

    def __init__(self) -> None:
        self._before = sys.unraisablehook

    def __call__(self, lost: sys.UnraisableHookArgs) -> None:
        number = _raised.get(id(lost.exc_value)) if lost.exc_value is not None else None
        if number is None:
            self._before(lost)
            return
        # Later, from a thread: within this hook the error would be lost as well.
        timer = threading.Timer(AGAIN_SECONDS, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()


def last_stop() -> int | None:
    """Return the number of the signal for which `stop` has raised an error in this command; None without one.

    C code of a library may raise an error of its own instead of it, such as that a file is damaged.
    """
    return next(iter(_raised.values()), None)


_raised: dict[int, int] = {}
"""The number of the signal for the last error that `stop` raised, by the identity of the error."""


def stop(number: int, frame: FrameType | None) -> None:
    """Raise an error that ends the command; within an import, end the process.

    An error in the middle of an import leaves half a module: torch then raises another error, or crashes the process. All that a
    command writes survives a kill at any moment.
    """
    if _imports(frame):
        os.write(2, b"stoker: stopped.\n")
        os._exit(128 + number)
    error = KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)
    _raised.clear()
    _raised[id(error)] = number
    raise error


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False

"""Ctrl-C, SIGTERM and SIGHUP in the commands of `stoker`."""

from __future__ import annotations

import os
import signal
from types import FrameType

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


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


def stop(number: int, frame: FrameType | None) -> None:
    """Raise an error that ends the command; within an import, end the process.

    An error in the middle of an import leaves half a module: torch then raises another error, or crashes the process. All that a
    command writes survives a kill at any moment.
    """
    if _imports(frame):
        os.write(2, b"stoker: stopped.\n")
        os._exit(128 + number)
    raise KeyboardInterrupt if number == signal.SIGINT else Terminated(number)


def _imports(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False

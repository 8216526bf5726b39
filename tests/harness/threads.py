"""The threads of feeds, and waiting for what threads do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def feed_threads() -> list[str]:
    """Names of the threads of feeds that are alive."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("stoker-feed")]


def wait_until(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true in a time in which it must even on a busy machine."""
    end = time.monotonic() + 30
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()

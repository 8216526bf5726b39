"""The sampler: which line of the user's code the program is at, asked a thousand times a second in a stretch of its own.

Frames of torch and of other packages count for the nearest line of the user's that called them. The question is asked by a timer's
signal within the thread itself. A thread beside it would be let in mostly where torch gives up the interpreter's lock, and so would
blame those lines too much; it is the way out where the timer is the program's own, or the thread is not the main one.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections import Counter
from types import FrameType, TracebackType
from typing import Self

from stoker.clock import now_ns
from stoker.diagnose.boundaries import NAMES, Boundaries
from stoker.diagnose.measurements import Blame, Place
from stoker.diagnose.own import own_frame, place_of

INTERVAL_SECONDS = 0.001
MAX_PLACES = 8


class Sampler:
    """The time that a thread was seen at each line, by phase."""

    def __init__(self, boundaries: Boundaries | None = None) -> None:
        self._boundaries = boundaries
        self._spent: Counter[tuple[int, Place | None]] = Counter()
        self._target = threading.get_ident()
        self._last_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self._last_ns = now_ns()
        if _timer_is_free():
            signal.signal(signal.SIGALRM, self._on_timer)
            signal.siginterrupt(signal.SIGALRM, False)  # what waits for the system goes on waiting
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS, INTERVAL_SECONDS)
        else:
            self._thread = threading.Thread(target=self._watch, name="stoker-sampler", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
        else:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _on_timer(self, number: int, frame: FrameType | None) -> None:
        self.see(frame)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self.see(sys._current_frames().get(self._target))

    def see(self, frame: FrameType | None) -> None:
        """Give the time since the last look to the line that runs now: a long call into C is seen once, at its end."""
        now = now_ns()
        own = own_frame(frame)
        phase = self._boundaries.phase if self._boundaries is not None else 0
        self._spent[phase, place_of(own) if own is not None else None] += now - self._last_ns
        self._last_ns = now

    def blames(self) -> dict[str, list[Blame]]:
        """Shares of each phase by line, the largest first."""
        return {name: found for number, name in enumerate(NAMES) if (found := self.of_phase(number))}

    def of_phase(self, number: int = 0) -> list[Blame]:
        """Shares of one phase by line."""
        spent = {place: time for (phase, place), time in self._spent.items() if phase == number}
        total = sum(spent.values())
        ordered = sorted(spent.items(), key=lambda one: -one[1])
        return [Blame(place=place, share=time / total) for place, time in ordered if place is not None][:MAX_PLACES]


def _timer_is_free() -> bool:
    """Whether a signal reaches this thread, and nobody else uses the timer."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None) and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0

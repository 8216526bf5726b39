"""The sampler: which line of the user's code the program is at, asked a few hundred times a second by a thread beside it.

Frames of torch and of other packages count for the nearest line of the user's that called them. It runs in a stretch of its own.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from types import TracebackType
from typing import Self

from stoker.diagnose.boundaries import NAMES, Boundaries
from stoker.diagnose.measurements import Blame, Place
from stoker.diagnose.own import own_frame, place_of

INTERVAL_SECONDS = 0.001
SWITCH_SECONDS = 0.0005
"""How long Python code may keep the sampler waiting; with the usual 5 ms, lines that call into C would be seen too often."""
MAX_PLACES = 8


class Sampler:
    """Counts the lines at which one thread is seen, by phase."""

    def __init__(self, boundaries: Boundaries | None = None) -> None:
        self._boundaries = boundaries
        self._thread = threading.Thread(target=self._watch, name="stoker-sampler", daemon=True)
        self._stop = threading.Event()
        self._seen: Counter[tuple[int, Place | None]] = Counter()
        self._target = threading.get_ident()
        self._switch = sys.getswitchinterval()

    def __enter__(self) -> Self:
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()
        sys.setswitchinterval(self._switch)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self.look()

    def look(self) -> None:
        """Take one sample."""
        phase = self._boundaries.phase if self._boundaries is not None else 0
        frame = own_frame(sys._current_frames().get(self._target))
        self._seen[phase, place_of(frame) if frame is not None else None] += 1

    def blames(self) -> dict[str, list[Blame]]:
        """Shares of each phase by line, the largest first."""
        return {name: found for number, name in enumerate(NAMES) if (found := self.of_phase(number))}

    def of_phase(self, number: int = 0) -> list[Blame]:
        """Shares of one phase by line."""
        seen = {place: count for (phase, place), count in self._seen.items() if phase == number}
        total = sum(seen.values())
        ordered = sorted(seen.items(), key=lambda one: -one[1])
        return [Blame(place=place, share=count / total) for place, count in ordered if place is not None][:MAX_PLACES]

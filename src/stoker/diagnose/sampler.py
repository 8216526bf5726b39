"""The sampler: which line of the user's code the program is at, asked a thousand times a second in a stretch of its own.

Frames of torch and of other packages count for the nearest line of the user's that called them. The question is asked by a timer's
signal within the thread itself. A thread beside it would be let in mostly where torch gives up the interpreter's lock, and so would
blame those lines too much; it is the way out where the timer is the program's own, or the thread is not the main one.
"""

from __future__ import annotations

import math
import signal
import sys
import threading
from collections import Counter
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Self

from stoker.clock import now_ns
from stoker.diagnose.boundaries import NAMES, Boundaries, Times
from stoker.diagnose.measurements import Blame, Place
from stoker.diagnose.own import INSTALLED, is_own, own_frame, place_of, shown

INTERVAL_SECONDS = 0.001
MAX_PLACES = 8
MAX_DEPTH = 64
"""Of calls, from the outermost."""
MOSTLY = 0.6
"""Of the time that rare steps take longer: a line that has so much of it is to blame."""
NEXT_TO_NOTHING = 0.1
"""Of the time of other steps: where they spend no more, they do something else."""


Stack = tuple[tuple[CodeType, int], ...]
"""Lines that called each other, the outermost first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """Where rare steps spend the time that they take longer than others."""

    phase: str
    """Of a step."""
    in_phase: float
    """Share of that time."""
    place: Place | None
    """The innermost line of the user's that has most of it; of a library where other steps are there, too."""
    called: Place | None
    """The line of the user's that called the function of this one; None where there is none."""
    alone: bool
    """Whether other steps spend next to nothing there."""


class Sampler:
    """The time that a thread was seen at each line, by phase; and where steps of at least `slow_from` seconds spend theirs."""

    def __init__(self, boundaries: Boundaries | None = None, *, slow_from: float = math.inf) -> None:
        self.runs = False
        self._boundaries = boundaries
        self._slow_from = slow_from
        self._step: list[tuple[Stack, int]] = []
        """What was seen of the step that runs."""
        self._stacks: tuple[Counter[Stack], Counter[Stack]] = (Counter(), Counter())
        """Nanoseconds of other steps and of slow ones, at each line with what it calls."""
        self._phases = ([0] * len(NAMES), [0] * len(NAMES))
        self._steps = [0, 0]
        self._spent: Counter[tuple[int, Place | None]] = Counter()
        self._target = threading.get_ident()
        self._last_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Begin to look."""
        self._last_ns = now_ns()
        self.runs = True
        if _timer_is_free():
            signal.signal(signal.SIGALRM, self._on_timer)
            signal.siginterrupt(signal.SIGALRM, False)  # what waits for the system goes on waiting
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS, INTERVAL_SECONDS)
        else:
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="stoker-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more, until it is started again."""
        if not self.runs:
            return
        self.runs = False
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
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
        if self._slow_from < math.inf:
            self._step.append((_stack(frame), now - self._last_ns))
        self._last_ns = now

    # ---- rare steps ----

    @property
    def num_slow(self) -> int:
        """Slow steps so far."""
        return self._steps[1]

    def end_step(self, times: Times) -> None:
        """A step has ended, and took so long."""
        slow = int(times.seconds >= self._slow_from)
        self._steps[slow] += 1
        for phase, spent in enumerate(times.phases_ns):
            self._phases[slow][phase] += spent
        for stack, spent in self._step:
            for depth in range(1, len(stack) + 1):
                self._stacks[slow][stack[:depth]] += spent
        self._step.clear()

    def rare_line(self) -> Line | None:
        """Where slow steps spend what they take longer than the others; None where there are none."""
        others, slow = max(1, self._steps[0]), self._steps[1]
        if not slow:
            return None
        longer = [most / slow - usual / others for usual, most in zip(*self._phases, strict=True)]
        phase = max(range(len(NAMES)), key=lambda number: longer[number])
        usual, most = self._stacks
        extra = {stack: spent / slow - usual[stack] / others for stack, spent in most.items()}
        total = sum(spent for stack, spent in extra.items() if len(stack) == 1)
        chain: list[Stack] = [()]
        while deeper := [one for one in extra if one[:-1] == chain[-1] and extra[one] >= MOSTLY * total > 0]:
            chain.append(max(deeper, key=lambda one: extra[one]))
        whole = sum(spent for stack, spent in usual.items() if len(stack) == 1)
        alone = [one for one in chain[1:] if usual[one] <= NEXT_TO_NOTHING * whole]
        own = [one for one in chain[1:] if is_own(one[-1][0].co_filename)]
        # In a library the first is the line of its loop that calls what is rare, so the next one says what that is.
        here = next((one for one in reversed(own) if one in alone), (alone[:2] or own[-1:] or [()])[-1])
        above = next((one for one in reversed(own) if len(one) < len(here)), ())
        return Line(
            phase=NAMES[phase],
            in_phase=longer[phase] / max(1e-9, sum(one for one in longer if one > 0)),
            place=_place(here),
            called=_place(above),
            alone=here in alone,
        )

    def blames(self) -> dict[str, list[Blame]]:
        """Shares of each phase by line, the largest first."""
        return {name: found for number, name in enumerate(NAMES) if (found := self.of_phase(number))}

    def of_phase(self, number: int = 0) -> list[Blame]:
        """Shares of one phase by line."""
        spent = {place: time for (phase, place), time in self._spent.items() if phase == number}
        total = sum(spent.values())
        ordered = sorted(spent.items(), key=lambda one: -one[1])
        return [Blame(place=place, share=time / total) for place, time in ordered if place is not None][:MAX_PLACES]


def _stack(frame: FrameType | None) -> Stack:
    """The lines that are running, from the outermost."""
    found: list[tuple[CodeType, int]] = []
    while frame is not None:
        found.append((frame.f_code, frame.f_lineno or 0))
        frame = frame.f_back
    return tuple(reversed(found))[:MAX_DEPTH]


def _place(stack: Stack) -> Place | None:
    """Its innermost line."""
    if not stack:
        return None
    code, line = stack[-1]
    file = shown(code.co_filename)
    for folder in INSTALLED:  # by the name of the package
        file = file.rpartition(f"/{folder}/")[2]
    return Place(file=file, line=line or code.co_firstlineno, function=code.co_qualname)


def _timer_is_free() -> bool:
    """Whether a signal reaches this thread, and nobody else uses the timer."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return signal.getsignal(signal.SIGALRM) in (signal.SIG_DFL, None) and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0

"""Profilers that the measurement windows use.

`Sampler` finds the user's lines that take the time, and `OtherThreads` a thread that computes beside the loop.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from types import CodeType, FrameType
from typing import Self

from stoker._clock import TASKS, now_ns
from stoker.diagnose.hooks import INSTALLED, NAMES, StepHooks, StepTimes, frames, is_own, own_line, shown
from stoker.diagnose.measurements import Blame, BusyThread, SourceLine

INTERVAL_SECONDS = 0.001
MAX_PLACES = 8
MAX_DEPTH = 64  # calls of a stack, from the outermost
MOSTLY = 0.6  # share of the extra time of rare steps from which a line is to blame
NEXT_TO_NOTHING = 0.1  # share of the time of other steps up to which they do not run a line


Stack = tuple[tuple[CodeType, int], ...]  # lines that call each other, the outermost first


@dataclass(frozen=True, kw_only=True, slots=True)
class SlowLine:
    """Where rare steps spend their extra time."""

    phase: str  # the phase with most of it
    in_phase: float  # share of the extra time in this phase
    place: SourceLine | None  # the user's innermost line with most of it; of a library if other steps run that line, too
    called: SourceLine | None  # the user's line that called the function of `place`
    alone: bool  # whether other steps spend next to no time there
    iterated: SourceLine | None = None  # the user's line that waits meanwhile for the next item of a `for` statement


class OtherThreads:
    """The program's other Python threads, and the sleep of this one, from its creation on."""

    def __init__(self) -> None:
        self._begin_ns, self._own_ns, self._others = now_ns(), time.thread_time_ns(), _ran_ns()

    def end(self) -> tuple[float, BusyThread | None]:
        """The share of the time that this thread slept, and the thread that computed most; None if none did."""
        spent, ran = max(1, now_ns() - self._begin_ns), _ran_ns()
        asleep = max(0.0, 1 - (time.thread_time_ns() - self._own_ns) / spent)
        shares = {thread: (ns - self._others.get(thread, ns)) / spent for thread, ns in ran.items()}
        busiest = max(shares, key=lambda thread: shares[thread], default=None)
        if busiest is None or shares[busiest] <= 0:
            return asleep, None
        line = own_line(sys._current_frames().get(busiest.ident or 0))
        return asleep, BusyThread(name=busiest.name, share=shares[busiest], place=line)


def _ran_ns() -> dict[threading.Thread, int]:
    """Nanoseconds that each other Python thread of the program has had a core."""
    ran = {}
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.name.startswith("stoker"):
            with contextlib.suppress(OSError, ValueError, IndexError):  # the thread has ended, or the system does not report it
                ran[thread] = int((TASKS / str(thread.native_id) / "schedstat").read_text().split()[0])
    return ran


class Sampler:
    """Samples the running line a thousand times per second: time by line and phase, and the lines of slow steps.

    A frame of torch or another package counts for the user's innermost line that called it. A timer's signal samples within the
    thread itself. A sampling thread would get the interpreter's lock mostly where torch releases it, and blame those lines too much;
    it is the fallback if the program uses the timer, or runs in another thread than the main one.
    `hooks` say which phase runs; without them there is one phase. Steps of at least `slow_from` seconds are slow.
    """

    def __init__(self, hooks: StepHooks | None = None, *, slow_from: float = math.inf) -> None:
        self.runs = False
        self._hooks = hooks
        self._slow_from = slow_from
        self._step: list[tuple[Stack, int]] = []  # samples of the current step
        self._stacks: tuple[Counter[Stack], Counter[Stack]] = (Counter(), Counter())
        """Nanoseconds of other steps and of slow ones, by stack."""
        self._phases = ([0] * len(NAMES), [0] * len(NAMES))
        self._steps = [0, 0]
        self._spent: Counter[tuple[int, SourceLine | None]] = Counter()
        self._target = threading.get_ident()
        self._last_ns = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start sampling."""
        self._last_ns = now_ns()
        self.runs = True
        # Whether this thread gets the signal, and the program does not use the timer.
        in_main = threading.current_thread() is threading.main_thread()
        unused = signal.getsignal(signal.SIGALRM) == signal.SIG_DFL and signal.getitimer(signal.ITIMER_REAL)[0] == 0.0
        if in_main and unused:
            signal.signal(signal.SIGALRM, self._on_timer)
            signal.siginterrupt(signal.SIGALRM, False)  # system calls are not interrupted
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS)
        else:
            self._stop.clear()
            self._thread = threading.Thread(target=self._watch, name="stoker-sampler", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
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
        self.sample(frame)
        # Started again only now: where another thread holds the interpreter, signals would interrupt their own handler without end.
        if self.runs:
            signal.setitimer(signal.ITIMER_REAL, INTERVAL_SECONDS)

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS):
            self.sample(sys._current_frames().get(self._target))

    def sample(self, frame: FrameType | None) -> None:
        """Count the time since the last sample for the current line: a long call into C is sampled once, at its end."""
        now = now_ns()
        phase = self._hooks.phase if self._hooks is not None else 0
        self._spent[phase, own_line(frame)] += now - self._last_ns
        if self._slow_from < math.inf:
            stack = [(caller.f_code, caller.f_lineno or 0) for caller in frames(frame)]
            self._step.append((tuple(reversed(stack))[:MAX_DEPTH], now - self._last_ns))
        self._last_ns = now

    @property
    def num_slow(self) -> int:
        """Number of slow steps so far."""
        return self._steps[1]

    def end_step(self, times: StepTimes) -> None:
        """Assign the samples of a step that has ended."""
        slow = int(times.seconds >= self._slow_from)
        self._steps[slow] += 1
        for phase, spent in enumerate(times.phases_ns):
            self._phases[slow][phase] += spent
        samples, self._step = self._step, []  # the timer may add one meanwhile, which belongs to the next step
        for stack, spent in samples:
            self._stacks[slow][stack] += spent

    def rare_line(self) -> SlowLine | None:
        """Where slow steps spend their extra time; None without slow steps.

        1. The phase with most of the extra time.
        2. The chain of calls with most of the extra time (`MOSTLY`), from the outermost inwards.
        3. Of this chain, the user's innermost line that only slow steps run; else a line of a library that only they run.
        """
        others, slow = max(1, self._steps[0]), self._steps[1]
        if not slow:
            return None
        longer = [most / slow - usual / others for usual, most in zip(*self._phases, strict=True)]
        phase = max(range(len(NAMES)), key=lambda number: longer[number])
        usual, most = (_with_callees(stack) for stack in self._stacks)
        extra = {stack: spent / slow - usual[stack] / others for stack, spent in most.items()}
        total = sum(spent for stack, spent in extra.items() if len(stack) == 1)
        chain: list[Stack] = [()]
        while deeper := [stack for stack in extra if stack[:-1] == chain[-1] and extra[stack] >= MOSTLY * total > 0]:
            chain.append(max(deeper, key=lambda stack: extra[stack]))
        whole = sum(spent for stack, spent in usual.items() if len(stack) == 1)
        own = [stack for stack in chain[1:] if is_own(stack[-1][0].co_filename)]
        # Where lines of the user share the time, none has most of it, and what calls their file is not to blame.
        shared = not own and any(is_own(stack[-1][0].co_filename) for stack in extra)
        own_folder = str(PurePath(__file__).parent)
        alone = [
            stack
            for stack in chain[1:]
            if not shared and usual[stack] <= NEXT_TO_NOTHING * whole and not stack[-1][0].co_filename.startswith(own_folder)
        ]
        # In a library, the first line is in its loop and calls the rare code; the second one is that code.
        here = next((stack for stack in reversed(own) if stack in alone), (alone[:2] or own[-1:] or [()])[-1])
        above = next((stack for stack in reversed(own) if len(stack) < len(here)), ())
        return SlowLine(
            phase=NAMES[phase],
            in_phase=longer[phase] / max(1e-9, sum(more for more in longer if more > 0)),
            place=_place(here),
            called=_place(above),
            alone=here in alone,
            iterated=_iterating(here),
        )

    def blames(self) -> dict[str, list[Blame]]:
        """Shares of each phase by line, the largest first."""
        return {name: blames for number, name in enumerate(NAMES) if (blames := self.of_phase(number))}

    def of_phase(self, number: int = 0) -> list[Blame]:
        """Shares of one phase by line."""
        spent = {place: time for (phase, place), time in self._spent.items() if phase == number}
        total = sum(spent.values()) or 1
        ordered = sorted(spent.items(), key=lambda item: -item[1])
        return [Blame(place=place, share=time / total) for place, time in ordered if place is not None][:MAX_PLACES]


def _with_callees(stacks: Counter[Stack]) -> Counter[Stack]:
    """The time in each call, including the calls that it makes."""
    counted: Counter[Stack] = Counter()
    for stack, spent in stacks.items():
        for depth in range(1, len(stack) + 1):
            counted[stack[:depth]] += spent
    return counted


def _iterating(stack: Stack) -> SourceLine | None:
    """The user's outermost line in a stack that requests the next item of an iterable; None without one."""
    for depth, (outer, inner) in enumerate(pairwise(stack), 1):
        code = inner[0]
        gives_items = bool(code.co_flags & inspect.CO_GENERATOR) or code.co_name in ("__next__", "__iter__", "__getitem__")
        if gives_items and is_own(outer[0].co_filename):
            return _place(stack[:depth])
    return None


def _place(stack: Stack) -> SourceLine | None:
    """The innermost line of a stack."""
    if not stack:
        return None
    code, line = stack[-1]
    file = shown(code.co_filename)
    for folder in INSTALLED:  # shown from the package on
        file = file.rpartition(f"/{folder}/")[2]
    return SourceLine(file=file, line=line or code.co_firstlineno, function=code.co_qualname)

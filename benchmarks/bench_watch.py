"""What does it cost to watch a loader all the time? The same loop over batches, plain and watched, in turn.

Steps are empty, which shows the cost of a step by itself, or compute for a millisecond, of which it may be one percent.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.record import arguments, interleave, ratio, save, spread
from stoker._clock import now_ns
from stoker.watching.watch import Watch, watch

QUESTION = "What does it cost to watch a loader all the time?"
STEP_NS = 1_000_000


def nothing() -> None: ...


def a_millisecond() -> None:
    """Computes for a millisecond of this thread, whatever others do: what comes late is not made up for."""
    end = time.thread_time_ns() + STEP_NS
    while time.thread_time_ns() < end:
        pass


def loop(batches: Iterable[Any], step: Callable[[], None]) -> int:
    number = 0
    for _ in batches:
        step()
        number += 1
    return number


def compare(step: Callable[[], None], *, steps: int, rounds: int) -> dict[str, Any]:
    batches = list(range(steps))
    seen: list[Watch[int]] = []

    def watched() -> int:
        seen.append(watch(batches))
        return loop(seen[-1], step)

    sides = {"plain": lambda: loop(batches, step), "watched": watched}
    seconds = interleave(sides, rounds=rounds, clock=time.thread_time)
    extra = [(b - a) / steps * 1e6 for a, b in zip(seconds["plain"], seconds["watched"], strict=True)]
    return {
        "steps": steps,
        "microseconds per step more": spread(extra),
        "watched over plain": ratio(seconds["watched"], seconds["plain"]),
        "plain microseconds per step": spread([one / steps * 1e6 for one in seconds["plain"]]),
        "all steps seen": all(one.steps == steps for one in seen),
    }


def main() -> None:
    options = arguments(QUESTION)
    rounds = options.rounds or (3 if options.small else 31)
    begin = now_ns()
    answer = {
        "empty steps": compare(nothing, steps=2_000 if options.small else 50_000, rounds=rounds),
        "steps of a millisecond": compare(a_millisecond, steps=20 if options.small else 500, rounds=rounds),
        "limits": "10 microseconds per step and 1 percent of steps of a millisecond; CPU time of the thread",
    }
    if options.small:
        print(json.dumps({**answer, "seconds": (now_ns() - begin) / 1e9}))
    else:
        save("bench_watch", QUESTION, answer)


if __name__ == "__main__":
    main()

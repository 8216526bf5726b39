"""What does it cost to watch a loop all the time? The same loop over batches, plain and watched, in turn.

Steps are empty, which shows the cost of a step by itself, or compute for a millisecond. All of the watch is included: the marks, the
detector every 10 steps and the counters of the system. `parts` has the cost of each part alone, `trainer` that in a `Trainer`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

import stoker
from benchmarks.record import arguments, interleave, ratio, save, spread
from benchmarks.watch.step_times import blocks_of, gaussian
from stoker import watch
from stoker._clock import now_ns
from stoker.watch.counters import read_counters
from stoker.watch.detector import BLOCK, SlowdownDetector
from stoker.watch.loop import READ_BLOCKS, Watch

QUESTION = "What does it cost to watch a loop all the time?"
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


def loop_with_calls(batches: Iterable[Any], step: Callable[[], None], ended: Callable[[], None]) -> int:
    number = 0
    for _ in batches:
        step()
        ended()
        number += 1
    return number


def compare(step: Callable[[], None], *, steps: int, rounds: int) -> dict[str, Any]:
    batches = list(range(steps))
    seen: list[Watch[Any]] = []

    def over() -> int:
        seen.append(watch(batches))
        return loop(seen[-1], step)

    def called() -> int:
        seen.append(watch())
        return loop_with_calls(batches, step, seen[-1].step)

    sides = {"plain": lambda: loop(batches, step), "watched": over, "called": called}
    seconds = interleave(sides, rounds=rounds, clock=time.thread_time)
    plain = seconds["plain"]
    return {
        "steps": steps,
        "microseconds per step more": more(seconds["watched"], plain, steps),
        "microseconds per step more, watch.step()": more(seconds["called"], plain, steps),
        "watched over plain": ratio(seconds["watched"], plain),
        "plain microseconds per step": spread([one / steps * 1e6 for one in plain]),
        "all steps seen": all(one.steps == steps for one in seen),
    }


def more(side: list[float], plain: list[float], steps: int) -> dict[str, float]:
    return spread([(b - a) / steps * 1e6 for a, b in zip(plain, side, strict=True)])


def parts(*, rounds: int) -> dict[str, Any]:
    """The cost of each part, per step."""
    blocks = blocks_of(gaussian(1 << 16, np.random.default_rng(0)), block=BLOCK)

    def detect() -> None:
        times = SlowdownDetector()
        for block in blocks:
            times.add(block)

    seconds = interleave({"detector": detect, "counters": read_counters}, rounds=rounds, clock=time.thread_time)
    read = [second * 1e6 for second in seconds["counters"]]
    return {
        "detector, microseconds per step": spread([second / len(blocks) / BLOCK * 1e6 for second in seconds["detector"]]),
        "counters, microseconds per read": spread(read),
        "counters, microseconds per step": spread([one / READ_BLOCKS / BLOCK for one in read]),
    }


def trainer(*, steps: int, rounds: int) -> dict[str, Any]:
    """A small model in a `Trainer`, with and without its watch."""
    import torch

    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    batches = [(torch.ones(8, 8), torch.zeros(8, 1))] * steps

    def fit(is_watched: bool) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        stoker.Trainer(model, torch.nn.MSELoss(), optimizer, progress=False, logging=stoker.train.Logging(watch=is_watched)).fit(
            batches
        )

    seconds = interleave({"plain": lambda: fit(False), "watched": lambda: fit(True)}, rounds=rounds, clock=time.thread_time)
    return {
        "microseconds per step more": more(seconds["watched"], seconds["plain"], steps),
        "watched over plain": ratio(seconds["watched"], seconds["plain"]),
        "plain microseconds per step": spread([second / steps * 1e6 for second in seconds["plain"]]),
    }


def main() -> None:
    options = arguments(QUESTION)
    rounds = options.rounds or (3 if options.small else 31)
    begin = now_ns()
    answer = {
        "empty steps": compare(nothing, steps=2_000 if options.small else 50_000, rounds=rounds),
        "steps of a millisecond": compare(a_millisecond, steps=20 if options.small else 1_000, rounds=rounds),
        "parts": parts(rounds=rounds),
        **({} if options.small else {"trainer": trainer(steps=2_000, rounds=rounds)}),
        "limits": "1 microsecond per step; CPU time of the thread",
    }
    if options.small:
        print(json.dumps({**answer, "seconds": (now_ns() - begin) / 1e9}))
    else:
        save("bench_watch", QUESTION, answer)


if __name__ == "__main__":
    main()

"""What does it cost a step to be diagnosed? The same training plain, with all hooks, and as T is measured, in turn.

A hook is a microsecond by itself. After operations that have taken the caches it is several, which is why the baseline (T) is
timed by two clock reads per turn and nothing else. By the time of this thread, so that others on the machine do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from benchmarks.record import arguments, ratio, save, spread
from stoker._clock import now_ns
from stoker.diagnose.loops import Source, WatchedIterator
from stoker.diagnose.recorder import StepSeries
from stoker.diagnose.session import REAL, Plan, Session

QUESTION = "What does it cost a step to be diagnosed?"
STEPS, WARM = 128, 4


class Hooked(Session):
    """All phases of all steps."""

    def _make_plan(self) -> Plan:
        while True:
            yield REAL


class Light(Session):
    """Times of turns, as in T."""

    def _make_plan(self) -> Plan:
        yield REAL
        self.hooks.pause()
        yield from self.record(REAL, 1e3, 1, StepSeries())


class Training:
    """Steps of about a millisecond."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.batches = [(torch.randn(256, 64), torch.randn(256, 1)) for _ in range(STEPS + WARM)]

    def step(self, batch: Any) -> None:
        x, y = batch
        self.optimizer.zero_grad()
        loss: Any = nn.functional.mse_loss(self.model(x), y)
        loss.backward()
        self.optimizer.step()

    def timed(self, batches: Iterable[Any]) -> float:
        """Seconds of a step."""
        iterator = iter(batches)
        for _ in range(WARM):
            self.step(next(iterator))
        begin, number = time.thread_time(), 0
        for batch in iterator:
            self.step(batch)
            number += 1
        return (time.thread_time() - begin) / number

    def watched(self, kind: type[Session]) -> float:
        """The same under a session."""
        session, source = kind(on_done=lambda: None), Source(self.batches, None)
        source.gives_batches = True
        session.hooks.install()
        session.hooks.find_roots()
        for batch in self.batches[:64]:
            self.step(batch)  # the losses that are kept, and the modules that are found
        session.sources.select(source)
        session.take_control()
        try:
            return self.timed(WatchedIterator(session.sources, source, source.new_pass(), now_ns()))
        finally:
            session.remove()


def main() -> None:
    """Measure and keep."""
    asked = arguments(QUESTION)
    torch.set_num_threads(1)
    training = Training()
    sides: dict[str, Callable[[], float]] = {
        "plain": lambda: training.timed(training.batches),
        "hooks": lambda: training.watched(Hooked),
        "T": lambda: training.watched(Light),
        "plain again": lambda: training.timed(training.batches),
    }
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(asked.rounds or (5 if asked.small else 60)):
        for name, run in sides.items():
            seconds[name].append(run())
    plain = [(a + b) / 2 for a, b in zip(seconds["plain"], seconds["plain again"], strict=True)]
    answer = {
        "plain microseconds per step": spread([one * 1e6 for one in plain]),
        "hooks over plain": ratio(seconds["hooks"], plain),
        "T over plain": ratio(seconds["T"], plain),
        "plain again over plain": ratio(seconds["plain again"], seconds["plain"]),
    }
    if asked.small:
        print(answer)
    else:
        save("bench_hooks", QUESTION, answer)


if __name__ == "__main__":
    main()

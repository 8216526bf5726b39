"""The stopwatch: an iterable of batches, watched while it is used. It says how much of a training waits for its data.

    with stoker.diagnose.watch(loader) as watched:
        for batch in watched:
            train_step(batch)
    print(watched)

It is made to stay in a program: two looks at the clock and two entries in rings of fixed size a step, which are microseconds
(benchmarks/bench_watch.py). The batches pass through as they are.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from stoker._clock import Spans, now_ns
from stoker.diagnose import render

SLOW = 3.0
"""Times the median from which a step is slow."""
DATA_BOUND = 0.10
"""Share of waiting from which data holds a training back."""
MIN_STEPS = 8
"""Fewer say too little."""
KEPT_STEPS = 1024

T = TypeVar("T")


class Watch(Generic[T]):
    """An iterable that is watched; `print` shows what was seen. Further passes add to the same numbers."""

    def __init__(self, batches: Iterable[T], tell: Callable[[str], object] | None) -> None:
        self._batches = batches
        self._tell = tell
        self._waits = Spans(KEPT_STEPS)
        self._bodies = Spans(KEPT_STEPS)
        self._startup_ns = 0

    def __iter__(self) -> Iterator[T]:
        waits, bodies, clock = self._waits.add, self._bodies.add, now_ns
        asked = clock()
        iterator = iter(self._batches)
        first = True
        try:
            for batch in iterator:
                given = clock()
                if first:
                    # Workers are started and queues filled: a matter of the pass, not of a step.
                    self._startup_ns += given - asked
                    waits(given, given)
                    first = False
                else:
                    waits(asked, given)
                try:
                    yield batch
                finally:
                    asked = clock()
                    bodies(given, asked)
        finally:
            if self._tell is not None:
                self._tell(str(self))

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._batches, name)  # `dataset`, `set_epoch` and the like are those of the loader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is held, so nothing has to be given back."""

    @property
    def steps(self) -> int:
        """Batches that were handed out, of all passes."""
        return self._bodies.count

    @property
    def rate(self) -> float:
        """Steps a second, the start of passes left out."""
        seconds = self._waits.seconds + self._bodies.seconds
        return self.steps / seconds if seconds else 0.0

    @property
    def startup_seconds(self) -> float:
        """Until the first batch, of all passes together."""
        return self._startup_ns / 1e9

    @property
    def wait_share(self) -> float:
        """Of the time of steps, what the program waited for batches."""
        seconds = self._waits.seconds + self._bodies.seconds
        return self._waits.seconds / seconds if seconds else 0.0

    @property
    def recent_seconds(self) -> list[float]:
        """How long each of the last steps was, its wait included."""
        recent: list[float] = (self._waits.recent_seconds() + self._bodies.recent_seconds()).tolist()
        return recent

    @property
    def spread(self) -> float:
        """Half the distance of the quartiles of the last steps, as a share of their median."""
        recent = self.recent_seconds
        if len(recent) < MIN_STEPS:
            return float("inf")
        low, middle, high = statistics.quantiles(recent, n=4)
        return (high - low) / 2 / middle if middle else 0.0

    @property
    def slow_steps(self) -> int:
        """Of the last steps, those that took three times the median or more."""
        recent = self.recent_seconds
        median = statistics.median(recent) if recent else 0.0
        return sum(seconds >= SLOW * median for seconds in recent) if median else 0

    @property
    def hint(self) -> str:
        """What follows, in one line."""
        if self.steps < MIN_STEPS:
            return f"{self.steps} steps say too little"
        share = f"{render.percent(self.wait_share)} of the time waits for batches"
        if self.wait_share < DATA_BOUND:
            return f"not data-bound: {share}"
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            return f"perhaps data-bound: {share}, unless the GPU is busy meanwhile; `stoker diagnose` tells"
        return f"data-bound: {share}, up to {render.times(1 / (1 - self.wait_share))} to win there"

    def __str__(self) -> str:
        if self.steps < MIN_STEPS:
            return self.hint
        recent = self.recent_seconds
        slow = self.slow_steps
        aside = f", {slow} slow of the last {len(recent):,} (the longest {render.duration(max(recent))})" if slow else ""
        rate = f"{render.per_second(self.rate)} it/s, spread {render.percent(self.spread)}"
        return f"{self.steps:,} steps, {rate}{aside}; {self.hint}"


def watch(batches: Iterable[T], *, tell: Callable[[str], object] | None = None) -> Watch[T]:
    """Watch an iterable of batches; `tell` (print, a logger's method) gets a line at the end of each pass."""
    return Watch(batches, tell)

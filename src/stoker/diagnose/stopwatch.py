"""A stopwatch around a loader: how much of a training run waits for its data.

It is made to stay in a program: two clock reads and two entries in ring buffers per step, which cost microseconds
(benchmarks/bench_watch.py). `watch` creates one.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from stoker._clock import Spans, now_ns
from stoker.diagnose import wording

SLOW = 3.0  # a slow step takes at least this many times the median
DATA_BOUND = 0.10  # share of waiting from which data is the bottleneck
MIN_STEPS = 8  # fewer steps say too little
KEPT_STEPS = 1024

T = TypeVar("T")


class Watch(Generic[T]):
    """An iterable of batches with a stopwatch; `print` shows its times. Further passes add to the same numbers."""

    def __init__(self, batches: Iterable[T], report: Callable[[str], object] | None) -> None:
        self._batches = batches
        self._report = report
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
                    # Starting workers and filling queues is a cost of the pass, not of a step.
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
            if self._report is not None:
                self._report(str(self))

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._batches, name)  # `dataset`, `set_epoch` and so on are those of the loader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to release."""

    @property
    def steps(self) -> int:
        """Number of batches given, in all passes."""
        return self._bodies.count

    @property
    def rate(self) -> float:
        """Steps per second, without the start of passes."""
        seconds = self._waits.seconds + self._bodies.seconds
        return self.steps / seconds if seconds else 0.0

    @property
    def startup_seconds(self) -> float:
        """Seconds until the first batch, summed over all passes."""
        return self._startup_ns / 1e9

    @property
    def wait_share(self) -> float:
        """Share of the time of steps spent waiting for batches."""
        seconds = self._waits.seconds + self._bodies.seconds
        return self._waits.seconds / seconds if seconds else 0.0

    @property
    def recent_seconds(self) -> list[float]:
        """Seconds of each of the last steps, its wait included."""
        recent: list[float] = (self._waits.recent_seconds() + self._bodies.recent_seconds()).tolist()
        return recent

    @property
    def spread(self) -> float:
        """Half the interquartile range of the last steps, as a share of their median."""
        recent = self.recent_seconds
        if len(recent) < MIN_STEPS:
            return float("inf")
        low, middle, high = statistics.quantiles(recent, n=4)
        return (high - low) / 2 / middle if middle else 0.0

    @property
    def slow_steps(self) -> int:
        """Number of the last steps that took at least three times the median."""
        recent = self.recent_seconds
        median = statistics.median(recent) if recent else 0.0
        return sum(seconds >= SLOW * median for seconds in recent) if median else 0

    @property
    def hint(self) -> str:
        """Whether data is the bottleneck, in one line."""
        if self.steps < MIN_STEPS:
            return f"{self.steps} steps say too little"
        share = f"{wording.percent(self.wait_share)} of the time waits for batches"
        if self.wait_share < DATA_BOUND:
            return f"not data-bound: {share}"
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            return f"perhaps data-bound: {share}, unless the GPU is busy meanwhile; run `stoker diagnose` to find out"
        return f"data-bound: {share}, up to {wording.times(1 / (1 - self.wait_share))} to win there"

    def __str__(self) -> str:
        if self.steps < MIN_STEPS:
            return self.hint
        recent = self.recent_seconds
        slow = self.slow_steps
        aside = f", {slow} slow of the last {len(recent):,} (the longest {wording.duration(max(recent))})" if slow else ""
        rate = f"{wording.per_second(self.rate)} it/s, spread {wording.percent(self.spread)}"
        return f"{self.steps:,} steps, {rate}{aside}; {self.hint}"


def watch(batches: Iterable[T], *, report: Callable[[str], object] | None = None) -> Watch[T]:
    """Put a stopwatch around a loader. The batches are unchanged.

    Args:
        batches: A loader or another iterable of batches.
        report: Called with a summary line at the end of each pass, for example `print` or a method of a logger.

    Returns:
        An iterable of the same batches; `print` it to see how much of the time waits for them.

    Example:
        >>> import stoker
        >>> with stoker.diagnose.watch([1, 2, 3]) as watched:
        ...     for batch in watched:
        ...         pass
        >>> watched.steps
        3
    """
    return Watch(batches, report)

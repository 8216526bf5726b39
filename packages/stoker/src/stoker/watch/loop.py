"""A watch on a training loop: how fast it is, how much it waits for data, and what slowed it down.

It is made to stay in a program. A step costs two clock reads and two entries in a list; every 10 steps the times go to the detector, and
every 4,080 steps the counters of the system are read (benchmarks/watch/bench_watch.py has the cost of each). `watch` creates a watch.
"""

from __future__ import annotations

import contextlib
import gc
import math
import statistics
import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from operator import sub
from typing import Any, Generic, Self, TypeVar

from stoker._clock import now_ns, thread_busy_ns
from stoker._text import readable_seconds
from stoker.watch.cause import Explanation, Slowdown, WatchedRanks, explain, find_ranks, slow_rank
from stoker.watch.counters import Counters, read_counters
from stoker.watch.detector import BLOCK, CAP, FAST_SHIFT, SlowdownDetector, UsualTimes

SLOW = 3.0  # a slow step takes at least this many times the median
DATA_BOUND = 0.10  # share of waiting from which data is the bottleneck
MIN_STEPS = 8  # fewer steps say too little
KEPT_STEPS = 1000
KEPT_COUNTERS = 8
READ_BLOCKS = 408  # between two reads of the counters
FIRST_READS = (18, 36, 60, 204)  # blocks, so that there are some when the detector is armed
READ_NS_PER_STEP = 50  # CPU time; counters are not read more often than this allows; the first reads are free
FREE_NS = 2_000_000
MAX_SLOWDOWNS = 100

T = TypeVar("T")
_END = object()
_all: weakref.WeakSet[Watch[Any]] = weakref.WeakSet()
listener: Callable[[str, Slowdown | None], object] | None = None
"""Called with each line about a slowdown, and the slowdown, whichever watch found it; set while `stoker watch` runs a script."""


def steps_of_others(watch: Watch[Any]) -> int:
    """Steps of all other watches of this process."""
    return sum(other.steps for other in _all if other is not watch)


class Watch(Generic[T]):
    """An iterable of batches that watches its loop, or, without batches, what `step` is called for.

    `print` shows its times. Further passes add to the same numbers.
    """

    def __init__(
        self,
        batches: Iterable[T] | None,
        report: Callable[[str], object] | None,
        *,
        size: Callable[[T], float] | None = None,
        on_slowdown: Callable[[Slowdown], object] | None = None,
        read: Callable[..., Counters] = read_counters,
    ) -> None:
        self.slowdowns: deque[Slowdown] = deque(maxlen=MAX_SLOWDOWNS)
        """The last slowdowns found."""
        self._batches = batches
        self._report = report
        self._on_slowdown = on_slowdown
        self._read = read
        self._times = SlowdownDetector()
        self._size = size
        self._batch_sizes: list[float] = []  # of the steps that are not taken yet and of the block, if they are known
        self._usual = UsualTimes()
        # Two lists, because to take every second entry of one costs more than all else that is done with a block.
        self._got: list[int] = []  # for each step since the last block when it got its batch, in ns
        self._ends: list[int] = [now_ns()]  # the end of the step before them, and when each ended
        self._block: list[int] = []  # times of steps that wait for a block to be full
        self._recent: deque[list[int]] = deque(maxlen=KEPT_STEPS // BLOCK)  # times of steps, as they were taken
        self._waits: deque[tuple[int, int]] = deque(maxlen=KEPT_STEPS // BLOCK)  # after each block: all steps, and all they waited
        self._steps = self._wait_ns = self._total_ns = self._startup_ns = 0
        self._blocks = 0  # since the speed has last changed
        self._next_read = FIRST_READS[0]  # the block after which counters are read next
        self._counters: list[Counters] = []  # oldest first
        self._suspected: Counters | None = None
        self._read_ns = -FREE_NS
        self._pending: tuple[Slowdown, Explanation, WatchedRanks] | None = None
        self._collector = CollectorTime()
        self._collector.install()
        weakref.finalize(self, self._collector.remove)
        _all.add(self)

    # ---- steps ----

    def __iter__(self) -> Iterator[T]:
        if self._batches is None:
            raise TypeError("this watch was made without batches; call its step() after each step.")
        got, ends, clock, size, sizes = self._got, self._ends, now_ns, self._size, self._batch_sizes
        mark_got, mark_end = got.append, ends.append
        self._end_open_step()
        self._take()
        asked = clock()
        iterator = iter(self._batches)
        try:
            batch = next(iterator, _END)
            if batch is not _END:
                # Starting workers and filling queues is a cost of the pass, not of a step.
                ends[-1] = clock()
                self._startup_ns += ends[-1] - asked
                mark_got(ends[-1])
                if size is not None:
                    sizes.append(size(batch))  # type: ignore[arg-type]
                yield batch  # type: ignore[misc]
                mark_end(clock())
            while True:
                for batch in islice(iterator, BLOCK - len(got)):
                    mark_got(clock())
                    if size is not None:
                        sizes.append(size(batch))
                    yield batch
                    mark_end(clock())
                if len(got) < BLOCK:
                    break
                self._take()
        finally:
            self._end_open_step()
            if self._report is not None:
                self._report(str(self))

    def _end_open_step(self) -> None:
        """End the step that has its batch, if there is one: its pass was left."""
        if len(self._ends) == len(self._got):
            self._ends.append(now_ns())

    def step(self, waited_ns: int = 0, *, size: float | None = None) -> None:
        """Note that a step has ended, in a loop that is not over this watch.

        Args:
            waited_ns: How long the step waited for its batch.
            size: The size of its batch, such as its number of tokens, if batches differ in size; then for all steps.
        """
        if size is not None:
            self._batch_sizes.append(size)
        ends = self._ends
        self._got.append(ends[-1] + waited_ns)
        ends.append(now_ns())
        if len(ends) > BLOCK:
            self._take()

    def begin(self) -> None:
        """Note that a step begins now: the time since the last one, as for a validation, is of no step."""
        self._take()
        self._ends[-1] = now_ns()

    def _marked(self) -> tuple[list[int], int, int]:
        """The steps that have ended since the last block: the time of each, of all, and their wait."""
        ends, last = self._ends, self._ends[-1]
        wait = sum(self._got[: len(ends) - 1]) - sum(ends) + last  # the last one may not have ended
        return list(map(sub, ends[1:], ends)), last - ends[0], wait

    def _take(self) -> None:
        """Take the marks. Each `BLOCK` steps go to the detector, those of several passes together where passes are short."""
        ends, got = self._ends, self._got
        steps, last = len(ends) - 1, ends[-1]
        if not steps:
            return
        times = list(map(sub, ends[1:], ends))
        self._total_ns += last - ends[0]
        self._wait_ns += sum(got) - sum(ends) + last
        self._steps += steps
        del ends[:-1]
        got.clear()
        self._recent.append(times)
        if steps != BLOCK or self._block:
            self._block += times
            if len(self._block) < BLOCK:
                return
            times, self._block = self._block[:BLOCK], self._block[BLOCK:]
        self._waits.append((self._steps, self._wait_ns))
        if self._batch_sizes:
            times = self._usual.scale(times, self._batch_sizes[:BLOCK])
            del self._batch_sizes[:BLOCK]
        self._end_block(times)
        # What the watch itself does is of no step: else the first step of each block would stand out where steps are short.
        ends[-1] = now_ns()

    def _end_block(self, block: list[int]) -> None:
        times = self._times
        change = times.add(block)
        self._blocks += 1
        if self._pending is not None:
            self._conclude()
        if change is not None:
            self._changed(change)
        elif times.fast.is_suspicious and not times.is_slow:
            if self._suspected is None:
                self._suspected = self._read_some()
        else:
            self._suspected = None
            if self._blocks >= self._next_read:
                self._next_read = next((read for read in FIRST_READS if read > self._blocks), self._blocks + READ_BLOCKS)
                counters = self._read_some()
                if counters is not None:
                    if len(self._counters) == KEPT_COUNTERS:
                        del self._counters[1::2]  # those that stay reach back to the last change of speed
                    self._counters.append(counters)

    # ---- slowdowns ----

    def _read_some(self) -> Counters | None:
        """The counters of now, unless they were read too often."""
        return self._read_all() if self._read_ns <= READ_NS_PER_STEP * self._steps else None

    def _read_all(self) -> Counters:
        begin = thread_busy_ns()
        counters = self._read(steps=self._steps, wait_ns=self._wait_ns, collector_ns=self._collector.total_ns)
        self._read_ns += thread_busy_ns() - begin
        return counters

    def _changed(self, change: str) -> None:
        now = self._read_all()
        earlier, suspected = self._counters, self._suspected
        self._counters, self._suspected = [now], None  # from here on, this is the speed to compare with
        self._blocks, self._next_read = 0, FIRST_READS[0]
        if change == "recovered":
            self._tell(f"step {self._steps:,}: steps are as fast as before the slowdown.")
            return
        since = max(0, self._steps - self._times.window_steps)
        later = [counters for counters in (*earlier, suspected) if counters is not None and counters.steps > since]
        earlier = [counters for counters in earlier if counters.steps <= since] or [*earlier, now][:1]
        before, after = self._sizes()
        begin, waits = (later or earlier[-1:])[0], self._waited(since)
        explanation = explain(earlier, begin, now, before_seconds=before, after_seconds=after, waits=waits)
        slowdown = Slowdown(
            step=self._steps,
            since=since,
            before_seconds=before,
            after_seconds=after,
            cause=explanation.cause,
            evidence=explanation.evidence,
        )
        ranks = find_ranks()
        if ranks is not None:
            with contextlib.suppress(RuntimeError):  # the store has gone, as a rank has ended
                ranks.publish(self._steps, explanation)
                self._pending = slowdown, explanation, ranks  # one block later all ranks have published
                return
        self._found(slowdown)

    def _sizes(self) -> tuple[float, float]:
        """Seconds of a step before and since the slowdown."""
        recent, slow = [*chain.from_iterable(self._recent)], self._times.window_steps
        if len(recent) >= slow + 2 * BLOCK:
            # Without the blocks around its begin, which may be partly slow.
            before, after = _capped_mean(recent[: -slow - BLOCK]), _capped_mean(recent[BLOCK - slow :])
            if after > before * math.exp(FAST_SHIFT):  # else a pause among the steps before hides it
                return before / 1e9, after / 1e9
        before, after = self._times.change
        return before / 1e9, after / 1e9

    def _waited(self, since: int) -> tuple[float, float] | None:
        """Seconds that a step waited for its batch before a step and after it; None if that is too long ago."""
        before = [wait for wait in self._waits if wait[0] <= since]
        if len(before) < 2 or self._waits[-1][0] <= since:
            return None
        (first, at_first), (middle, at_middle), (last, at_last) = before[0], before[-1], self._waits[-1]
        return (at_middle - at_first) / (middle - first) / 1e9, (at_last - at_middle) / (last - middle) / 1e9

    def _conclude(self) -> None:
        """Name the rank that is slow."""
        assert self._pending is not None
        (slowdown, own, ranks), self._pending = self._pending, None
        explained = {ranks.rank: own}
        with contextlib.suppress(RuntimeError):
            explained |= ranks.collect(slowdown.step)
        slow = slow_rank(explained, ranks.number)
        if slow is not None:
            evidence = f"rank {slow} is slow ({explained[slow].cause}): {explained[slow].evidence}"
            slowdown = Slowdown(**(slowdown.as_dict() | {"cause": "rank", "evidence": evidence}))
        self._found(slowdown)

    def _found(self, slowdown: Slowdown) -> None:
        self.slowdowns.append(slowdown)
        if self._on_slowdown is not None:
            self._on_slowdown(slowdown)
        self._tell(str(slowdown), slowdown)

    def _tell(self, line: str, slowdown: Slowdown | None = None) -> None:
        if self._report is not None:
            self._report(line)
        if listener is not None:
            listener(line, slowdown)

    # ---- the loader ----

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_batches" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._batches, name)  # `dataset`, `set_epoch` and so on are those of the loader

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Stop listening to the garbage collector."""
        self._collector.remove()

    # ---- numbers ----

    @property
    def steps(self) -> int:
        """Number of steps, in all passes."""
        return self._steps + len(self._got)

    @property
    def smallest_slowdown(self) -> float:
        """The least slowdown that would be found within 100 steps, as a share; infinite before some 700 steps."""
        return self._times.smallest

    @property
    def rate(self) -> float:
        """Steps per second, without the start of passes."""
        times, total_ns, _ = self._marked()
        total_ns += self._total_ns
        return (self._steps + len(times)) * 1e9 / total_ns if total_ns else 0.0

    @property
    def startup_seconds(self) -> float:
        """Seconds until the first batch, summed over all passes."""
        return self._startup_ns / 1e9

    @property
    def wait_share(self) -> float:
        """Share of the time of steps spent waiting for batches."""
        _, total_ns, wait_ns = self._marked()
        total_ns += self._total_ns
        return (self._wait_ns + wait_ns) / total_ns if total_ns else 0.0

    @property
    def recent_seconds(self) -> list[float]:
        """Seconds of each of the last steps, its wait included."""
        times, _, _ = self._marked()
        return [time / 1e9 for time in (*chain.from_iterable(self._recent), *times)][-KEPT_STEPS:]

    @property
    def spread(self) -> float:
        """Half the interquartile range of the last steps, as a share of their median."""
        recent = self.recent_seconds
        if len(recent) < MIN_STEPS:
            return math.inf
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
        share = f"{_percent(self.wait_share)} of the time waits for batches"
        if self.wait_share < DATA_BOUND:
            return f"not data-bound: {share}"
        if "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized():
            return f"perhaps data-bound: {share}, unless the GPU is busy meanwhile; run `stoker diagnose` to find out"
        return f"data-bound: {share}, up to {1 / (1 - self.wait_share):.2f}x to win there"

    def __str__(self) -> str:
        if self.steps < MIN_STEPS:
            return self.hint
        recent = self.recent_seconds
        slow = self.slow_steps
        aside = f", {slow} slow of the last {len(recent):,} (the longest {readable_seconds(max(recent))})" if slow else ""
        return f"{self.steps:,} steps, {_per_second(self.rate)} it/s, spread {_percent(self.spread)}{aside}; {self.hint}"


class CollectorTime:
    """Time in full garbage collections, from `install` to `remove`."""

    def __init__(self) -> None:
        self.total_ns = 0
        self._began = 0

    def install(self) -> None:
        """Begin to listen."""
        gc.callbacks.append(self._heard)

    def remove(self) -> None:
        """End it."""
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] < 2:  # short, and its time does not grow with the number of objects
            return
        if phase == "start":
            self._began = now_ns()
        elif self._began:
            self.total_ns += now_ns() - self._began
            self._began = 0


def _capped_mean(times: Sequence[int]) -> float:
    """The mean with the longest steps capped, as the detector caps them."""
    most = CAP * statistics.median(times)
    return statistics.fmean(min(time, most) for time in times)


def _percent(share: float) -> str:
    """0.714 as 71 %; small shares keep a digit."""
    return f"{share:.1%}".replace("%", " %") if 0 < share < 0.095 else f"{share:.0%}".replace("%", " %")


def _per_second(rate: float) -> str:
    """2,900, 74, 7.4, 0.42."""
    return f"{rate:,.0f}" if rate >= 20 else f"{rate:.3g}" if rate < 1 else f"{rate:.1f}"

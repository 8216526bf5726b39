"""A plan: what each step of a loop gets, told step by step by a generator that is sent the times of the step before."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from stoker._clock import now_ns
from stoker.diagnose.cuda import Marks
from stoker.diagnose.distributed import Ranks
from stoker.diagnose.hooks import NAMES, NEXT, REST, Boundaries, Times, copied, num_bytes, num_rows
from stoker.diagnose.loaders import Sources, Watched, queue_length, wait_for_workers
from stoker.diagnose.measurements import Device, Machine, Measurements
from stoker.diagnose.recorder import Ledger
from stoker.errors import TrainError


class Mode(NamedTuple):
    """What a step gets."""

    cached: bool = False
    before: Callable[[], object] | None = None
    """Called when the batch is there, outside of all times."""
    turns: Turns | None = None
    """What takes the times of the steps behind this one, until it is over; they get batches of the same kind."""


TRUE, CACHED = Mode(), Mode(cached=True)
Plan = Generator[Mode, Times, None]


# Steps: those of a stretch, let go by until all has settled, or counted, for so long or so many.
#
# Between the stretches, which say what their steps get and where the times go, and the session, which does that step by step. The
# law: where several processes train together, all of them make the same number of steps.

LONGEST_SECONDS: dict[Device, float] = {"cpu": 20.0, "cuda": 12.0}
"""From the first measured step: what a verdict may take."""
CUDA_PACE = 0.6
"""Steps of a GPU vary less, and a verdict is to come sooner."""
MOST_STEPS = 600
GoOn = Callable[[float, Callable[[], list[float]]], bool]
Each = Callable[[Times], None]


class Steps:
    """How long stretches are, and the steps that they consist of."""

    def __init__(self, training: Training, *, pace: float = 1.0, seconds: float | None = None) -> None:
        self.training = training
        self._pace = pace
        """How long stretches are, as a share of what they usually are."""
        self._seconds = seconds
        """How long measuring may take; by default what a verdict needs."""
        self._begin_ns = 0
        self._device_step: float | None = None
        """Seconds of the last steps on a GPU's timeline."""

    def begin(self) -> None:
        """The time that measuring may take runs from here on."""
        self._begin_ns = now_ns()

    @property
    def late(self) -> bool:
        """Whether that time is over."""
        return bool(self.training.agree(now_ns() - self._begin_ns > self.longest * 1e9))

    @property
    def longest(self) -> float:
        """Seconds that measuring may take."""
        return LONGEST_SECONDS[self.training.device] if self._seconds is None else self._seconds

    @property
    def patience(self) -> float:
        """Seconds for which rare steps are waited for: half of what measuring may take."""
        return self._pace * self.longest / 2

    def length(self, seconds: float) -> float:
        """Seconds of a stretch that usually has so many."""
        return seconds * (self._pace * CUDA_PACE if self.training.device == "cuda" else self._pace)

    def settle(self, mode: Mode, number: int) -> Plan:
        """So many steps that do not count."""
        for _ in range(number):
            yield mode

    def count(
        self, mode: Mode, seconds: float, least: int, into: list[Times], *, go_on: GoOn | None = None, each: Each | None = None
    ) -> Plan:
        """Steps of so many seconds, and at least so many; their times go `into` a list.

        `each` is given the times of each step, and `go_on` is asked whether there is reason for more. Processes that train together
        do not ask: all must make the same number of steps.
        """
        training = self.training
        agreed = self._agreed_number(seconds, least)
        if agreed is not None:
            seconds, least = 0.0, agreed
        length = self.length(seconds)
        if training.boundaries.silent and training.device == "cpu" and training.watched is not None:
            end = functools.partial(training.end_epoch, into)
            turns = Turns(into, seconds=length, least=least, most=agreed or MOST_STEPS, cached=mode.cached, end=end, go_on=go_on)
            yield mode._replace(turns=turns)  # a step that is not counted, and then all that are
            return
        begin, count, tries, first = now_ns(), 0, 0, len(into)
        marks = Marks() if training.device == "cuda" else None
        most = MOST_STEPS
        if marks is not None and self._device_step:  # the host is steps ahead of the device, and its clock says little
            most = max(least, round(length / self._device_step))
        more = False
        while more or (count if agreed is None else tries) < least or now_ns() - begin < length * 1e9:
            times = yield mode
            tries += 1
            if each is not None:
                each(times)
            # A step at whose begin an epoch ended is another one, unless nearly all are so.
            counts = not times.broken or (tries > 2 * least and 4 * count < tries)
            if marks is not None:
                marks.add(whole=counts)
            if counts:
                into.append(times)
                count += 1
            else:
                training.end_epoch(into, times)
            done = count >= most or (count >= least and now_ns() - begin >= length * 1e9)
            if done and go_on is not None and agreed is None:
                more = go_on(times.seconds, lambda: [one.seconds for one in into[first:]])
            if agreed is None and not more and (count >= most or tries > 40 + 4 * least + 2 * count):
                break
        if marks is not None:
            spent = marks.seconds()
            training.ledger.on_device.setdefault(id(into), []).extend(spent)
            training.ledger.time_ends(into, marks.seconds(whole=False))
            self._device_step = statistics.median(spent) if spent else None

    def _agreed_number(self, seconds: float, least: int) -> int | None:
        """How many steps a stretch has, where several processes must have the same number; None where time decides."""
        training = self.training
        if training.ranks is None:
            return None
        recent = statistics.median(one.seconds for one in (training.ledger.loop or training.ledger.early)[-6:])
        return int(training.agree(max(least, min(MOST_STEPS, self.length(seconds) // max(recent, 1e-6)))))


# Turns: the times of many turns of a loop, by two looks at the clock a turn and nothing else.
#
# Between the loop and the session, for stretches of short steps: whatever Python does after operations have taken the caches
# costs
# several times what it costs alone, so here it does next to nothing until the stretch is over.


class Turns:
    """A stretch of turns of at least some seconds and some number."""

    def __init__(
        self,
        into: list[Times],
        *,
        seconds: float,
        least: int,
        most: int,
        cached: bool,
        end: Callable[[Times], None] | None = None,
        go_on: Callable[[float, Callable[[], list[float]]], bool] | None = None,
    ) -> None:
        self.cached = cached
        self._into = into
        self._add_end = end
        """Given those at whose begin an epoch ended, before those behind it are written down."""
        self._go_on = go_on
        """Asked whether there is reason for more turns, once there are enough."""
        self._least = least
        self._most = most
        self._span_ns = int(seconds * 1e9)
        self._until_ns = 0
        self._asked: list[int] = []
        self._given: list[int] = []
        self._between: dict[int, int] = {}
        """By the number of a turn at whose begin an epoch ended: what passed there besides the wait for a batch."""
        self._ended_ns: int | None = None
        """When the batch behind the last of an epoch was asked for, until the next epoch begins."""

    def is_over(self, now_ns: int) -> bool:
        """Asked when a turn begins: whether the one before was the last."""
        if now_ns < self._until_ns:
            return False
        number = len(self._given)
        if number == 0:
            self._until_ns = now_ns + self._span_ns
            return False
        if number < min(self._most, self._least + len(self._between)):
            return False
        return self._go_on is None or not self._go_on((now_ns - self._asked[-1]) / 1e9, lambda: self._seconds(now_ns))

    def _seconds(self, now_ns: int) -> list[float]:
        """Of the turns so far that count."""
        turns = enumerate(pairwise([*self._asked, now_ns]))
        return [(end - begin) / 1e9 for number, (begin, end) in turns if number not in self._between]

    def add(self, asked_ns: int, given_ns: int) -> None:
        """A batch was asked for, and given."""
        self._asked.append(asked_ns)
        self._given.append(given_ns)

    def end_epoch(self, asked_ns: int) -> None:
        """There was no batch when one was asked for."""
        self._ended_ns = asked_ns

    def break_off(self, between_ns: int) -> None:
        """An epoch ended at the begin of the turn that was added last, and so much later the next one began: it is another kind
        of step."""
        if self._ended_ns is not None:
            self._asked[-1], self._ended_ns = self._ended_ns, None
        self._between[len(self._given) - 1] = between_ns

    def end(self, now_ns: int | None = None) -> int:
        """Write the times down; without a time, the last turn has no end. Returns how many turns there were."""
        last = self._ended_ns if self._ended_ns is not None else now_ns
        ends = [*self._asked[1:], *([] if last is None else [last])]
        all_alike = 4 * len(self._between) >= 3 * len(ends)  # where nearly all are so, they are the steps
        for number, (asked, given, end) in enumerate(zip(self._asked, self._given, ends, strict=False)):
            between, broken = self._between.get(number, 0), number in self._between and not all_alike
            spent = [0] * len(NAMES)
            spent[NEXT], spent[REST] = given - asked - between, end - given + between
            times = Times(tuple(spent), broken, between)
            if not broken:
                self._into.append(times)
            elif self._add_end is not None:
                self._add_end(times)
        self._asked.clear()
        self._given.clear()
        return len(ends)


# The training: what a session and the stretches that it runs share of the one training loop that is looked at.
#
# It stands between the two: the session hands batches to the loop and says which iterator they come from, stretches keep copies
# of
# them and say how steps are looked at, and those who started the session ask here for what has been measured.

MAX_CACHED_BYTES = 256 << 20
MAX_CACHED = 16


class Training:
    """A training loop, and what is known of it."""

    def __init__(self, *, every_turn: bool = False) -> None:
        self.boundaries = Boundaries()
        self.sources = Sources(self.boundaries)
        self.ledger = Ledger()
        self.device: Device = "cpu"
        self.every_turn = every_turn
        """Whether each turn of the loop is a step, whatever happens in it."""
        self.endless = False
        """Whether the loop is ours: its epochs do not end any more."""
        self.light = False
        """Whether steps are so short that their times are taken without looking at their phases."""
        self.light_without_data = False
        """Whether they are where batches cost nothing."""
        self.keeping = False
        """Whether batches are copied as they come: what gives them cannot be begun anew, and may end soon."""
        self.ranks: Ranks | None = None
        """The processes that train together, if this is one of several."""
        self.what_if: str | None = None
        """The fix that is measured now. What the program raises meanwhile is not its own fault."""
        self.looked_at: set[str] = set()
        """Fixes of which it is known what they give, or that it cannot be known."""
        self.watched: Watched | None = None
        """What the loop goes through, since a batch was asked for."""
        self.instead: Iterator[Any] | None = None
        """What the loop gets in place of its own batches, while that is measured."""
        self.batches: list[Any] = []
        """Copies of several distinct batches."""

    def measurements(self, machine: Machine | None = None) -> Measurements:
        """All that is known; raises where that is nothing. The machine is measured unless one is given."""
        return self.ledger.measurements(self.sources, self.boundaries, self.device, machine)

    def agree(self, value: float) -> float:
        """The same for all processes of a training."""
        return value if self.ranks is None else self.ranks.agree(float(value))

    def end_epoch(self, into: list[Times], times: Times) -> None:
        """Keep a step at whose begin an epoch ended, beside those that are written to a list."""
        self.ledger.add_end(into, times, ours=self.endless and self.can_repeat)

    def is_light(self, mode: Mode) -> bool:
        """Whether steps that get this are so short that looking at them costs too much."""
        return self.light_without_data if mode.cached else self.light

    # ---- its batches ----

    @property
    def can_cache(self) -> bool:
        """Whether the loop can be given copies of earlier batches."""
        found = self.sources.found
        return found is not None and found.iterable is not None and found.gives_batches

    @property
    def can_repeat(self) -> bool:
        """Whether there are always more batches."""
        found = self.sources.found
        return found is not None and found.gives_batches and found.can_repeat

    @property
    def without_data(self) -> Mode:
        """What a step gets whose data is to cost nothing, where that can be."""
        return CACHED if self.can_cache else TRUE

    @property
    def queue(self) -> int:
        """Batches that workers make ahead."""
        found = self.sources.found
        return queue_length(found.loader) if found is not None else 0

    def collect(self) -> None:
        """Keep copies of several distinct batches, and wait until workers have nothing to do."""
        watched = self.watched
        while watched is not None and self._has_room and (watched.source.can_repeat or not self.batches):
            self.keep(self._next_of(watched))
        wait_for_workers(watched.iterator if watched is not None else None)

    def keep(self, batch: Any) -> None:
        """Keep a copy of it, if there is room."""
        if self._has_room:
            self.batches.append(copied(batch))
            self.ledger.batch_bytes.append(num_bytes(batch))
            self.ledger.batch_rows = num_rows(batch)

    @property
    def _has_room(self) -> bool:
        return len(self.batches) < MAX_CACHED and num_bytes(self.batches) <= MAX_CACHED_BYTES

    def _next_of(self, watched: Watched) -> Any:
        try:
            return next(watched.iterator)
        except StopIteration:
            if not watched.source.can_repeat:
                raise TrainError("the batches came to an end while they were looked at.") from None
            watched.restart()
            return next(watched.iterator)

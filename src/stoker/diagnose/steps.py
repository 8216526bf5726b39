"""Steps: those of a stretch, let go by until all has settled, or counted, for so long or so many.

Between the stretches, which say what their steps get and where the times go, and the session, which does that step by step. The
law: where several processes train together, all of them make the same number of steps.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable

from stoker.clock import now_ns
from stoker.diagnose.boundaries import Times
from stoker.diagnose.cuda import Marks
from stoker.diagnose.measurements import Device
from stoker.diagnose.plan import Mode, Plan
from stoker.diagnose.training import Training
from stoker.diagnose.turns import Turns

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

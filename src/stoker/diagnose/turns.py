"""Turns: the times of many turns of a loop, by two looks at the clock a turn and nothing else.

Between the loop and the session, for stretches of short steps: whatever Python does after operations have taken the caches costs
several times what it costs alone, so here it does next to nothing until the stretch is over.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from stoker.diagnose.boundaries import NAMES, NEXT, REST, Times


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

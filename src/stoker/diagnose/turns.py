"""Turns: the times of many turns of a loop, by two looks at the clock a turn and nothing else.

Between the loop and the session, for stretches of short steps: whatever Python does after operations have taken the caches costs
several times what it costs alone, so here it does next to nothing until the stretch is over.
"""

from __future__ import annotations

from stoker.diagnose.boundaries import NAMES, NEXT, REST, Times


class Turns:
    """A stretch of turns of at least some seconds and some number."""

    def __init__(self, into: list[Times], *, seconds: float, least: int, most: int, cached: bool) -> None:
        self.cached = cached
        self._into = into
        self._least = least
        self._most = most
        self._span_ns = int(seconds * 1e9)
        self._until_ns = 0
        self._asked: list[int] = []
        self._given: list[int] = []
        self._broken: set[int] = set()

    def is_over(self, now_ns: int) -> bool:
        """Asked when a turn begins: whether the one before was the last."""
        if now_ns < self._until_ns:
            return False
        number = len(self._given)
        if number == 0:
            self._until_ns = now_ns + self._span_ns
            return False
        return number >= min(self._most, self._least + len(self._broken))

    def add(self, asked_ns: int, given_ns: int) -> None:
        """A batch was asked for, and given."""
        self._asked.append(asked_ns)
        self._given.append(given_ns)

    def break_off(self) -> None:
        """An epoch ended at the begin of the turn that was added last: it is another kind of step, and does not count."""
        self._broken.add(len(self._given) - 1)

    def end(self, now_ns: int | None = None) -> int:
        """Write the times down; without a time, the last turn has no end. Returns how many turns there were."""
        ends = [*self._asked[1:], *([] if now_ns is None else [now_ns])]
        broken = self._broken if 4 * len(self._broken) < 3 * len(ends) else set()  # where nearly all are so, they are the steps
        for number, (asked, given, end) in enumerate(zip(self._asked, self._given, ends, strict=False)):
            if number not in broken:
                spent = [0] * len(NAMES)
                spent[NEXT], spent[REST] = given - asked, end - given
                self._into.append(Times(tuple(spent), False))
        self._asked.clear()
        self._given.clear()
        return len(ends)

"""Meetings of processes that a test plays."""

from __future__ import annotations

import pytest
from tests.diagnose.clock import Clock

from stoker.diagnose import distributed as module
from stoker.diagnose.distributed import Meeting

MILLISECONDS_A_LOOK = 100


class Store:
    """The other process comes to its first meetings at one of our looks, and to no more of them."""

    def __init__(self, *others_at: int) -> None:
        self._others_at = dict(enumerate(others_at))
        self.looks: dict[str, int] = {}

    def add(self, key: str, number: int) -> int:
        self.looks[key] = self.looks.get(key, 0) + 1
        at = self._others_at.get(len(self.looks) - 1)
        return 1 + (at is not None and self.looks[key] >= at)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "now_ns", clock)
    monkeypatch.setattr("stoker.diagnose.distributed.time.sleep", lambda seconds: clock.tick(MILLISECONDS_A_LOOK))
    return clock


def test_no_one_continues_before_all_are_there() -> None:
    store = Store(1, 4)
    meeting = Meeting(store, 2, name="met/1")
    meeting.wait()
    meeting.wait()
    assert store.looks == {"met/1/0": 1, "met/1/1": 4}
    assert meeting.held == 2
    assert not meeting.missed


def test_who_does_not_come_is_not_waited_for_twice() -> None:
    store = Store(2)
    meeting = Meeting(store, 2, name="met/1")
    for _ in range(5):
        meeting.wait()
    assert meeting.missed
    assert meeting.held == 1
    assert list(store.looks) == ["met/1/0", "met/1/1"]
    assert store.looks["met/1/1"] == pytest.approx(module.MEETING_SECONDS * 1000 / MILLISECONDS_A_LOOK, abs=2)

"""The share of waiting is that of the data alone."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.train.training import Pair, network, pairs, trainer_of

from stoker._clock import Spans

HOUR = 3_600_000_000_000


class Slow:
    """Batches of which each takes a moment, and after each an hour is noted in a clock: all that it took."""

    def __init__(self, noted: Spans | None) -> None:
        self.noted = noted
        self.pacing = noted

    def note(self) -> None:
        time.sleep(0.05)
        if self.noted is not None:
            self.noted.add(0, HOUR)

    def __iter__(self) -> Iterator[Pair]:
        for pair in pairs(3):
            self.note()
            yield pair
        self.note()


@pytest.mark.parametrize("counts_as", ["compiling", "pacing"])
def test_compiling_and_waiting_for_the_device_do_not_count(counts_as: str, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = Spans()
    batches = Slow(noted)
    if counts_as == "compiling":
        batches.pacing = None
        monkeypatch.setattr("stoker.train.fit.compile_ns", lambda: noted.total_ns)
    assert trainer_of(network()).fit(batches, epochs=1).wait < 0.5  # the start of a pass counts, and takes microseconds


def test_waiting_for_batches_counts() -> None:
    result = trainer_of(network()).fit(Slow(None), epochs=1)
    assert result.wait * result.seconds >= 0.004

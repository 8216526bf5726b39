"""The log of a run: a failing writer never stops a training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from stoker.train.loggers import Log


class Keeps:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.seen.append((step, dict(values)))

    def close(self) -> None:
        self.seen.append("closed")


class Fails(Keeps):
    def write(self, step: int, values: Mapping[str, float]) -> None:
        super().write(step, values)
        if step >= 2:
            raise ConnectionError("no\nroute")


def test_a_writer_that_fails_is_dropped_with_one_warning_and_the_others_continue() -> None:
    good, bad = Keeps(), Fails()
    writers = Log([bad, good])
    writers.write(1, {"loss": 1.0})
    with pytest.warns(
        RuntimeWarning, match=r"writer Fails failed at step 2; no further values are sent to it\. ConnectionError: no route"
    ) as seen:
        writers.write(2, {"loss": 0.5})
    assert len(seen) == 1
    writers.write(3, {"loss": 0.2})
    writers.close()
    assert [entry[0] for entry in good.seen[:-1]] == [1, 2, 3]
    assert len(bad.seen) == 2
    assert good.seen[-1] == "closed"


def test_negative_control_alone_it_would_stop_the_training() -> None:
    with pytest.raises(ConnectionError):
        Fails().write(2, {})


def test_an_error_on_close_is_a_warning_and_the_rest_is_closed() -> None:
    class Sticks(Keeps):
        def close(self) -> None:
            raise OSError

    good = Keeps()
    with pytest.warns(RuntimeWarning, match="writer Sticks failed as it was closed.*OSError: no reason given"):
        Log([Sticks(), good]).close()
    assert good.seen == ["closed"]

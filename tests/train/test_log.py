"""The log of a run: a failing writer never stops a training, and the numbers of steps are read as they were recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from stoker.errors import OptionError, TrainError
from stoker.train.log import Log, Readout
from stoker.train.loggers import TensorBoard


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


def test_ctrl_c_is_not_taken_for_a_failure() -> None:
    class Interrupted(Keeps):
        def write(self, step: int, values: Mapping[str, float]) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Log([Interrupted()]).write(1, {})


@pytest.mark.parametrize("thing", ["tensorboard", TensorBoard, object()])
def test_what_is_not_a_writer_is_refused(thing: Any) -> None:
    with pytest.raises(OptionError, match=r"loggers holds .*; expected what has write\(step, values\)"):
        Log([thing])


# The numbers of each step.

CPU = torch.device("cpu")


def recorded(readout: Readout, values: list[float]) -> None:
    for value in values:
        readout.record({"loss": torch.tensor(value), "norm": torch.tensor(10 * value)})
        readout.count += 1


def test_windows_hold_the_numbers_of_their_steps() -> None:
    readout = Readout(CPU, capacity=4)
    recorded(readout, [1.0, 2.0, 3.0])
    assert readout.window().column("loss") == [1.0, 2.0, 3.0]
    readout.take()
    recorded(readout, [4.0])
    latest = readout.latest()
    assert latest is not None
    assert latest.tolist() == [4.0, 40.0]
    readout.take()
    first, second = readout.ready()
    assert (first.first, first.column("loss"), first.column("norm")) == (0, [1.0, 2.0, 3.0], [10.0, 20.0, 30.0])
    assert (second.first, second.column("loss")) == (3, [4.0])
    assert first.means([True, False, True]) == {"loss": 2.0, "norm": 20.0}
    assert readout.ready() == []
    readout.take()
    assert readout.ready() == [], "an empty window is not one"


def test_a_step_that_is_recorded_again_replaces_its_row() -> None:
    readout = Readout(CPU, capacity=4)
    recorded(readout, [1.0])
    for value in (5.0, 6.0):  # a step that is tried out twice: the count has not moved
        readout.record({"loss": torch.tensor(value), "norm": torch.tensor(0.0)})
    readout.count += 1
    assert readout.window().column("loss") == [1.0, 6.0]


def test_what_was_not_read_yet_is_in_the_state() -> None:
    one, other = Readout(CPU, capacity=3), Readout(CPU, capacity=3)
    recorded(one, [1.0, 2.0])
    one.take()
    recorded(one, [3.0])
    other.load_state_dict(one.state_dict())
    for readout in (one, other):
        recorded(readout, [4.0, 5.0])
        readout.take()
    assert [window.column("loss") for window in other.ready()] == [window.column("loss") for window in one.ready()]
    one.take()
    recorded(one, [6.0])
    one.take()
    one.drop()
    assert one.ready() == []


def test_other_numbers_than_before_are_refused() -> None:
    readout = Readout(CPU, capacity=3)
    recorded(readout, [1.0])
    with pytest.raises(TrainError, match="the loss function returns loss now, but loss, norm before"):
        readout.record({"loss": torch.tensor(1.0)})

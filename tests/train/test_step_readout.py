"""The numbers of steps are read as they were recorded."""

from __future__ import annotations

import torch

from stoker.train.step import Readout

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

"""What passes between epochs: whose it is, and how much of it each step has."""

from __future__ import annotations

import pytest
from tests.diagnose.measured import on_cpu

from stoker.diagnose.hooks import FORWARD, NAMES, NEXT, REST, Times
from stoker.diagnose.measurements import Loader
from stoker.diagnose.recorder import Course, End, Ledger, between
from stoker.diagnose.verdict import conclude

MS = 1_000_000


def times(wait: int, rest: int, between: int = 0) -> Times:
    spent = [0] * len(NAMES)
    spent[NEXT], spent[FORWARD], spent[REST] = wait * MS, 5 * MS, (rest + between) * MS
    return Times(tuple(spent), bool(between), between * MS)


STEPS = [times(2, 3)] * 12


def end(at: int, wait: int, between: int = 0, *, stretch: int = 0, ours: bool = False, on_device: float | None = None) -> End:
    return End(at, stretch, times(wait, 3, between), ours, on_device)


def test_a_step_has_its_part_of_what_the_loader_takes_to_begin_and_of_what_else_passes() -> None:
    found = between([Course(steps=STEPS, ends=[end(0, 32, 50), end(4, 32, 50), end(8, 32, 50)], on_device=None)], length=99)
    assert found is not None
    assert found.loader == pytest.approx(0.030 / 5), "epochs of five steps"
    assert found.other == pytest.approx(0.050 / 5)


def test_one_end_is_enough_where_the_length_of_an_epoch_is_known() -> None:
    course = Course(steps=STEPS, ends=[end(3, 32)], on_device=None)
    found = between([course], length=10)
    assert found is not None
    assert found.loader == pytest.approx(0.003)
    assert between([course], length=None) is None
    assert between([Course(steps=STEPS, ends=[], on_device=None)], length=10) is None


def test_epochs_that_the_diagnosis_begins_have_nothing_else_between() -> None:
    found = between([Course(steps=STEPS, ends=[end(0, 2, 100), end(4, 2, ours=True)], on_device=None)], length=None)
    assert found is not None
    assert found.other == pytest.approx(0.100 / 5)


def test_ends_of_two_stretches_have_no_epoch_between_them() -> None:
    course = Course(steps=STEPS, ends=[end(2, 2), end(6, 2, stretch=1)], on_device=None)
    assert course.lengths() == []
    assert course.epochs(2) == [[], []]


def test_the_mean_step_of_an_epoch_has_the_begin_of_it_and_not_what_else_passed() -> None:
    [[one]] = Course(steps=STEPS, ends=[end(0, 32, 50), end(4, 32, 50)], on_device=None).epochs(1)
    assert one.seconds == pytest.approx(0.010 + 0.030 / 5)


def test_on_a_gpu_the_timeline_of_the_device_tells() -> None:
    """Its host may wait for a batch while the device still works."""
    ends = [end(0, 32, on_device=9.0), end(4, 32, ours=True, on_device=0.025), end(8, 32, ours=True, on_device=0.025)]
    found = between([Course(steps=STEPS, ends=ends, on_device=[0.010] * 12)], length=None)
    assert found is not None
    assert found.loader == pytest.approx(0.015 / 5)
    assert Course(steps=STEPS, ends=ends, on_device=[]).extra_waits() == []


def test_the_ledger_gives_ends_their_stretch_and_their_time_on_the_device() -> None:
    ledger = Ledger()
    ledger.begin(ledger.loop)
    ledger.loop += STEPS
    ledger.add_end(ledger.loop, times(32, 3, 1), ours=False)
    ledger.begin(ledger.loop)
    ledger.add_end(ledger.loop, times(33, 3, 1), ours=True)
    ledger.time_ends(ledger.loop, [0.5])
    assert [(one.at, one.stretch, one.ours, one.on_device) for one in ledger.ends[id(ledger.loop)]] == [
        (12, 0, False, None),
        (12, 1, True, 0.5),
    ]


@pytest.mark.parametrize(("workers", "persistent", "advised"), [(2, False, True), (2, True, False), (0, None, False)])
def test_worker_processes_that_start_in_each_epoch_are_to_stay(workers: int, persistent: bool | None, advised: bool) -> None:
    loader = Loader(kind="DataLoader", workers=workers, persistent=persistent)
    finding = conclude(on_cpu(next=10.0, loader=loader, between_epochs={"loader": 0.25, "other": 0.5}))
    assert finding.verdict == "data"
    assert "25 % of the time passes between epochs until it gives batches again" in finding.why
    assert ("persistent" in [step.name for step in finding.next]) == advised


def test_steps_of_a_trial_have_their_part_of_what_the_loader_takes_to_begin() -> None:
    ledger, steps = Ledger(), list[Times]()
    for _ in range(2):
        ledger.begin(steps)
        for _ in range(2):
            steps += STEPS[:4]
            ledger.add_end(steps, times(32, 3), ours=True)
    assert ledger.last_stretch(steps, None) == pytest.approx([0.010 + 0.030 / 5] * 8)
    ledger.ends.clear()
    assert ledger.last_stretch(steps, None) == pytest.approx([0.010] * 8), "the control: no epoch ends"


def test_a_short_stretch_of_a_trial_is_not_lost_where_steps_are_looked_at_several_at_a_time() -> None:
    ledger, steps = Ledger(batch_bytes=[1, 2]), list[Times]()  # batches of two sizes: four at a time, where there are enough
    for number in (100, 3):
        ledger.begin(steps)
        steps += [times(2, 3)] * number
    assert ledger.last_stretch(steps, None) == pytest.approx([0.010] * 3)

"""Series of steps, and the time between epochs: whether it belongs to the loader, and how much of it each step gets."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterable
from contextlib import suppress

import pytest
from tests.diagnose.clock import MACHINE
from tests.diagnose.measured import on_cpu

from stoker.diagnose.hooks import FORWARD, NAMES, NEXT, REST, StepHooks, StepTimes
from stoker.diagnose.loops import Sources
from stoker.diagnose.measurements import Loader
from stoker.diagnose.recorder import EpochStart, Recorder, StepSeries, between_epochs
from stoker.diagnose.rule import conclude
from stoker.diagnose.session import REAL, Session
from stoker.diagnose.windows import measure_all

MS = 1_000_000


def times(wait: int, rest: int, between: int = 0) -> StepTimes:
    spent = [0] * len(NAMES)
    spent[NEXT], spent[FORWARD], spent[REST] = wait * MS, 5 * MS, (rest + between) * MS
    return StepTimes(tuple(spent), bool(between), between * MS)


STEPS = [times(2, 3)] * 12


def end(at: int, wait: int, between: int = 0, *, window: int = 0, ours: bool = False, seconds: float | None = None) -> EpochStart:
    return EpochStart(at, window, times(wait, 3, between), ours, seconds)


def test_a_step_has_its_part_of_what_the_loader_takes_to_begin_and_of_what_else_passes() -> None:
    found = between_epochs([StepSeries(steps=STEPS, epoch_starts=[end(0, 32, 50), end(4, 32, 50), end(8, 32, 50)])], length=99)
    assert found is not None
    assert found.loader == pytest.approx(0.030 / 5), "epochs of five steps"
    assert found.other == pytest.approx(0.050 / 5)


def test_one_end_is_enough_where_the_length_of_an_epoch_is_known() -> None:
    series = StepSeries(steps=STEPS, epoch_starts=[end(3, 32)])
    found = between_epochs([series], length=10)
    assert found is not None
    assert found.loader == pytest.approx(0.003)
    assert between_epochs([series], length=None) is None
    assert between_epochs([StepSeries(steps=STEPS, epoch_starts=[])], length=10) is None


def test_epochs_that_the_diagnosis_begins_have_nothing_else_between() -> None:
    found = between_epochs([StepSeries(steps=STEPS, epoch_starts=[end(0, 2, 100), end(4, 2, ours=True)])], length=None)
    assert found is not None
    assert found.other == pytest.approx(0.100 / 5)


def test_ends_of_two_measurement_windows_have_no_epoch_between_them() -> None:
    series = StepSeries(steps=STEPS, window_starts=[0, 5], epoch_starts=[end(2, 2), end(6, 2, window=1)])
    assert series.epoch_lengths() == []
    assert series.epochs() == [[], []]


def test_the_mean_step_of_an_epoch_has_the_begin_of_it_and_not_what_else_passed() -> None:
    [[one]] = StepSeries(steps=STEPS, epoch_starts=[end(0, 32, 50), end(4, 32, 50)]).epochs()
    assert one.seconds == pytest.approx(0.010 + 0.030 / 5)


def test_on_a_gpu_the_timeline_of_the_device_reports() -> None:
    """Its host may wait for a batch while the device still works."""
    ends = [end(0, 32, seconds=9.0), end(4, 32, ours=True, seconds=0.025), end(8, 32, ours=True, seconds=0.025)]
    found = between_epochs([StepSeries(steps=STEPS, epoch_starts=ends, device_seconds=[0.010] * 12)], length=None, on_gpu=True)
    assert found is not None
    assert found.loader == pytest.approx(0.015 / 5)
    assert StepSeries(steps=STEPS, epoch_starts=ends).extra_waits(on_gpu=True) == []


@pytest.mark.parametrize(("idle", "between"), [(0.001, 0.001), (0.090, 0.090), (0.500, 0.160)])
def test_a_line_after_an_epoch_that_waits_for_the_gpu_has_only_the_time_in_which_the_gpu_idles(idle: float, between: float) -> None:
    """Such as `loss.item()`: 160 ms by the clock of the host, in which the device runs the steps that were issued ahead."""
    ends = [end(0, 2, 160, seconds=0.030 + idle), end(4, 2, 160, seconds=0.030 + idle)]
    found = between_epochs([StepSeries(steps=STEPS, epoch_starts=ends, device_seconds=[0.030] * 12)], length=None, on_gpu=True)
    assert found is not None
    assert found.other == pytest.approx(between / 5)


@pytest.mark.parametrize(("host", "between"), [(160, 0.060), (90, 0.0)])
def test_before_steps_are_timed_on_the_gpu_it_may_be_behind_by_an_epoch(host: int, between: float) -> None:
    """Steps of 10 ms for the host and 30 ms for the device, epochs of five."""
    warm_up = StepSeries(steps=STEPS, epoch_starts=[end(0, 2, host)])
    loop = StepSeries(steps=STEPS, device_seconds=[0.030] * 12)
    found = between_epochs([warm_up, loop], length=5, on_gpu=True)
    assert found is not None
    assert found.other == pytest.approx(between / 5)


def test_epoch_starts_have_their_window_and_their_time_on_the_device() -> None:
    series = StepSeries()
    series.begin_window()
    series.steps += STEPS
    series.add_epoch_start(times(32, 3, 1), ours=False)
    series.begin_window()
    series.add_epoch_start(times(33, 3, 1), ours=True)
    series.add_device_seconds([], [0.5])
    assert [(one.at, one.window, one.ours, one.device_seconds) for one in series.epoch_starts] == [
        (12, 0, False, None),
        (12, 1, True, 0.5),
    ]


def recorded(session: Session, series: StepSeries, seconds: float, number: int = 4) -> list[float]:
    """Record steps of a fake GPU, and return the times of the series."""
    plan = session.record(REAL, 0.0, number, series)
    window, step = next(plan).window, times(0, int(seconds * 1000) - 5)
    assert window is not None
    while not window.add(step):
        pass
    with suppress(StopIteration):
        plan.send(step)
    return series.seconds()


class FakeMarks:
    """The device took a second per step."""

    def __init__(self) -> None:
        self._counted: list[bool] = []

    def add(self, *, counted: bool) -> None:
        self._counted.append(counted)

    def seconds(self, *, counted: bool = True) -> list[float]:
        return [1.0 for one in self._counted if one == counted]


def test_device_times_of_a_temporary_series_never_reach_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were once kept by the `id` of a list, which Python gives to another list after the first is freed."""
    monkeypatch.setattr("stoker.diagnose.session.StepMarks", FakeMarks)
    session = Session(measure_all, on_done=lambda: None)
    session.device = "cuda"
    freed: set[int] = set()
    for _ in range(50):
        temporary = StepSeries()
        assert recorded(session, temporary, 0.010) == [1.0] * 4
        freed.add(id(temporary.steps))
        del temporary
    session.device = "cpu"
    reused = 0
    kept = [StepSeries() for _ in range(200)]
    for series in kept:
        reused += id(series.steps) in freed
        assert recorded(session, series, 0.010) == pytest.approx([0.010] * 4)
    assert reused, "the control: some lists have the id of a freed one"
    assert session.recorder.on_gpu


def test_a_program_that_ends_in_its_warm_up_gets_no_device_times_of_other_windows() -> None:
    recorder = Recorder(early=[times(2, 3)] * 5, on_gpu=True)
    for _ in range(50):
        temporary = StepSeries(steps=list(STEPS))
        temporary.add_device_seconds([9.0] * 12, [])
        del temporary
    hooks = StepHooks()
    measured = recorder.measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert measured.loop.seconds == pytest.approx([0.010] * 4)


@pytest.mark.parametrize(("workers", "persistent", "advised"), [(2, False, True), (2, True, False), (0, None, False)])
def test_worker_processes_that_start_in_each_epoch_are_to_stay(workers: int, persistent: bool | None, advised: bool) -> None:
    loader = Loader(kind="DataLoader", workers=workers, persistent=persistent)
    finding = conclude(on_cpu(next=10.0, loader=loader, between_epochs={"loader": 0.25, "other": 0.5}))
    assert finding.verdict == "data"
    assert "25 % of the time passes between epochs until it gives batches again" in finding.why
    assert ("persistent" in [step.name for step in finding.next]) == advised


def test_steps_of_a_trial_have_their_part_of_what_the_loader_takes_to_begin() -> None:
    recorder, series = Recorder(), StepSeries()
    for _ in range(2):
        series.begin_window()
        for _ in range(2):
            series.steps += STEPS[:4]
            series.add_epoch_start(times(32, 3), ours=True)
    assert recorder.last_window(series, None) == pytest.approx([0.010 + 0.030 / 5] * 8)
    series.epoch_starts.clear()
    assert recorder.last_window(series, None) == pytest.approx([0.010] * 8), "the control: no epoch ends"


def test_a_short_measurement_window_of_a_trial_is_not_lost_where_steps_are_inspected_several_at_a_time() -> None:
    recorder, series = Recorder(), StepSeries()  # batches of two sizes: four at a time, where there are enough
    for number in (100, 3):
        series.begin_window()
        series.steps += [times(2, 3)] * number
    assert recorder.last_window(series, None) == pytest.approx([0.010] * 3)


def recorded_in_turn(*rests: int, number: int = 48) -> Recorder:
    recorder = Recorder()
    for _ in range(2):
        recorder.loop.begin_window()
        recorder.loop.steps += [times(2, rests[at % len(rests)]) for at in range(number)]
    return recorder


def test_steps_that_differ_in_turn_are_inspected_together() -> None:
    """A metric in each second step is neither rare nor noise."""
    hooks = StepHooks()
    measured = recorded_in_turn(1, 21).measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert measured.loop.seconds == pytest.approx([0.018] * len(measured.loop.seconds))
    assert measured.phases.rest == pytest.approx(0.011)
    assert measured.rare is None
    noisy = recorded_in_turn(1, 21, 1, 21, 1, 21, 1, 21, 1, 21, 2, 40).measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert noisy.loop.spread < 0.1, "a slow step among them is none of the turn"
    steady = recorded_in_turn(11, 11).measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert len(steady.loop.seconds) == 96, "the control: steps that are all alike stay single"
    rare = recorded_in_turn(1, 1, 1, 1, 1, 41).measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert len(rare.loop.seconds) == 96, "rare steps are a cause of their own"
    assert rare.rare is not None


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_alternate_may_also_vary(seed: int) -> None:
    """A few steps that seem slow, with next to nothing of the time, do not hide that every second one is."""
    hooks, draw, recorder = StepHooks(), random.Random(seed), Recorder()
    for number in (99, 36, 37, 33):
        recorder.loop.begin_window()
        steps = [(6.0 if place % 2 else 13.6) * draw.lognormvariate(0, 0.12) for place in range(number)]
        recorder.loop.steps += [StepTimes((0,) * REST + (round(one * MS),), False) for one in steps]
    measured = recorder.measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert measured.loop.median == pytest.approx(0.0098, rel=0.05)


def test_the_time_to_conclude_grows_with_the_number_of_steps_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    real = statistics.median

    def median(values: Iterable[float]) -> float:
        values = list(values)
        seen.append(len(values))
        return real(values)

    monkeypatch.setattr(statistics, "median", median)
    steps = 500
    hooks = StepHooks()
    Recorder(loop=StepSeries(steps=[times(2, 3)] * steps)).measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert sum(seen) < 50 * steps


@pytest.mark.parametrize(
    ("recompiled", "verdict", "words"), [(24, "host", "in which torch.compile compiles again"), (2, "data", "without loading")]
)
def test_what_cached_batches_save_where_torch_compiles_for_each_batch_is_not_loading(
    recompiled: int, verdict: str, words: str
) -> None:
    waits = 90 if verdict == "data" else 1  # milliseconds for a batch; compiling is in the rest of a step
    recorder = Recorder(
        loop=StepSeries(steps=[times(waits, 95 - waits)] * 24), cached=StepSeries(steps=[times(0, 5)] * 24), recompiled=recompiled
    )
    measured = recorder.measurements(Sources(StepHooks()), StepHooks(), "cpu", MACHINE)
    finding = conclude(measured)
    assert finding.verdict == verdict
    assert words in finding.causes[0].sentence
    assert (measured.cached is None) == (verdict == "host")
    assert ("torch.compile(dynamic=True)" in finding.next[0].sentence) == (verdict == "host")

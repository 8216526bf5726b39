"""Series of steps, and the time between epochs: whether it belongs to the loader, and how much of it each step gets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

import pytest
from tests.diagnose.clock import MACHINE
from tests.diagnose.measured import on_cpu

from stoker.diagnose.hooks import FORWARD, NAMES, NEXT, REST, StepHooks, StepTimes
from stoker.diagnose.loops import Sources
from stoker.diagnose.measurements import Loader, Stretch
from stoker.diagnose.recorder import Recorder, StepSeries, at_one_level, between_epochs
from stoker.diagnose.rule import conclude

MS = 1_000_000


def times(wait: int, rest: int, between: int = 0) -> StepTimes:
    spent = [0] * len(NAMES)
    spent[NEXT], spent[FORWARD], spent[REST] = wait * MS, 5 * MS, (rest + between) * MS
    return StepTimes(tuple(spent), bool(between), between * MS)


STEPS = [times(2, 3)] * 12


def end(at: int, wait: int, between: int = 0, *, ours: bool = False, seconds: float | None = None) -> tuple[int, StepTimes]:
    """The first step of an epoch, behind `at` steps."""
    return at, times(wait, 3, between)._replace(new_epoch=True, ours=ours, device_seconds=seconds)


def window(*ends: tuple[int, StepTimes], seconds: float | None = None) -> list[StepTimes]:
    """Twelve steps, with the first steps of epochs between them."""
    steps = [step._replace(device_seconds=seconds) for step in STEPS]
    for at, step in reversed(ends):
        steps.insert(at, step)
    return steps


def test_a_step_has_its_part_of_what_the_loader_takes_to_begin_and_of_what_else_passes() -> None:
    found = between_epochs([StepSeries(window(end(0, 32, 50), end(4, 32, 50), end(8, 32, 50)))], length=99)
    assert found is not None
    assert found.loader == pytest.approx(0.030 / 5), "epochs of five steps"
    assert found.other == pytest.approx(0.050 / 5)


def test_one_end_is_enough_where_the_length_of_an_epoch_is_known() -> None:
    series = StepSeries(window(end(3, 32)))
    found = between_epochs([series], length=10)
    assert found is not None
    assert found.loader == pytest.approx(0.003)
    assert between_epochs([series], length=None) is None
    assert between_epochs([StepSeries(window())], length=10) is None


def test_epochs_that_the_diagnosis_begins_have_nothing_else_between() -> None:
    found = between_epochs([StepSeries(window(end(0, 2, 100), end(4, 2, ours=True)))], length=None)
    assert found is not None
    assert found.other == pytest.approx(0.100 / 5)


def test_on_a_gpu_the_timeline_of_the_device_reports() -> None:
    """Its host may wait for a batch while the device still works."""
    ends = [end(0, 32, seconds=9.0), end(4, 32, ours=True, seconds=0.025), end(8, 32, ours=True, seconds=0.025)]
    found = between_epochs([StepSeries(window(*ends, seconds=0.010))], length=None, on_gpu=True)
    assert found is not None
    assert found.loader == pytest.approx(0.015 / 5)
    assert StepSeries(window(*ends)).extra_waits(on_gpu=True) == []


@pytest.mark.parametrize(("idle", "between"), [(0.001, 0.001), (0.090, 0.090), (0.500, 0.160)])
def test_a_line_after_an_epoch_that_waits_for_the_gpu_has_only_the_time_in_which_the_gpu_idles(idle: float, between: float) -> None:
    """Such as `loss.item()`: 160 ms by the clock of the host, in which the device runs the steps that were issued ahead."""
    ends = [end(0, 2, 160, seconds=0.030 + idle), end(4, 2, 160, seconds=0.030 + idle)]
    found = between_epochs([StepSeries(window(*ends, seconds=0.030))], length=None, on_gpu=True)
    assert found is not None
    assert found.other == pytest.approx(between / 5)


@pytest.mark.parametrize(("workers", "persistent", "advised"), [(2, False, True), (2, True, False), (0, None, False)])
def test_worker_processes_that_start_in_each_epoch_are_to_stay(workers: int, persistent: bool | None, advised: bool) -> None:
    loader = Loader(kind="DataLoader", workers=workers, persistent=persistent)
    finding = conclude(on_cpu(next=10.0, loader=loader, between_epochs={"loader": 0.25, "other": 0.5}))
    assert finding.verdict == "data"
    assert "25 % of the time passes between epochs until it gives batches again" in finding.why
    assert ("persistent" in [step.name for step in finding.next]) == advised


def recorded_in_turn(*rests: int, number: int = 48) -> Recorder:
    steps = [times(2, rests[at % len(rests)]) for at in range(number)]
    return Recorder(loop=StepSeries(steps, steps))


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


@pytest.mark.promise("P17")
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
    Recorder(loop=StepSeries([times(2, 3)] * steps)).measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert sum(seen) < 50 * steps


@pytest.mark.parametrize(
    ("recompiled", "verdict", "words"), [(24, "host", "in which torch.compile compiles again"), (2, "data", "without loading")]
)
def test_what_cached_batches_save_where_torch_compiles_for_each_batch_is_not_loading(
    recompiled: int, verdict: str, words: str
) -> None:
    waits = 90 if verdict == "data" else 1  # milliseconds for a batch; compiling is in the rest of a step
    recorder = Recorder(
        loop=StepSeries([times(waits, 95 - waits)] * 24), cached=StepSeries([times(0, 5)] * 24), recompiled=recompiled
    )
    measured = recorder.measurements(Sources(StepHooks()), StepHooks(), "cpu", MACHINE)
    finding = conclude(measured)
    assert finding.verdict == verdict
    assert words in finding.causes[0].sentence
    assert (measured.cached is None) == (verdict == "host")
    assert ("torch.compile(dynamic=True)" in finding.next[0].sentence) == (verdict == "host")


# ---- stretches at different speeds of a machine, brought to one ----


def test_a_round_is_reported_at_the_speed_that_the_loop_mostly_had() -> None:
    loop = [[10.0] * 5, [10.0] * 5, [15.0] * 5, [15.0] * 5, [10.0] * 9]
    cached = [[6.0] * 3, [99.0] * 3, [9.0] * 3, [99.0] * 3]  # the second and the fourth while the speed changed
    assert at_one_level(cached, loop) == [pytest.approx([6.0] * 3)] * 2
    raw = statistics.median([value for values in cached for value in values])
    assert raw != pytest.approx(6.0)  # as it would be without


def test_without_steady_rounds_all_are_taken() -> None:
    found = at_one_level([[5.0], [8.0]], [[10.0, 10.0], [16.0, 16.0], [10.0, 10.0]])
    assert len(found) == 2
    assert found[0] == pytest.approx([5.0 * 10.0 / 13.0])


def test_without_a_loop_nothing_changes() -> None:
    assert at_one_level([[1.0], [2.0]], []) == [[1.0], [2.0]]
    assert at_one_level([[1.0], []], [[2.0]]) == [[1.0], []]


def test_a_change_of_speed_between_pieces_does_not_count_as_spread() -> None:
    steps = [1.0, 1.01, 0.99, 1.0] * 4
    both = Stretch(seconds=[*steps, *(1.5 * seconds for seconds in steps)], pieces=[16, 16])
    assert both.spread < 0.02
    assert Stretch(seconds=both.seconds).spread > 0.15  # where it is not known what was measured in a row


@pytest.mark.promise("P17")
def test_others_have_the_cores_for_no_more_than_all_of_the_time() -> None:
    """A wait that began before a window counts in it whole: here 30 ms of 20."""
    hooks, step = StepHooks(), times(1, 9)
    recorder = Recorder(loop=StepSeries([step] * 20), waited_ns=30_000_000, taken_ns=90_000_000, looped_ns=20_000_000, cores=2)
    measured = recorder.measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert (measured.waited_for_cores, measured.cores_taken) == (1.0, 1.0)
    assert "for 100 % of the time other programs had the cores" in conclude(measured).why


@pytest.mark.parametrize(("recompiled", "usual"), [(0, 0.010), (20, 0.080)])
def test_first_batches_of_a_size_are_left_out_unless_torch_compiles_for_them(recompiled: int, usual: float) -> None:
    steps = [StepTimes((0, 0, 35 * MS, 45 * MS, 0, 0), False, 0, at) for at in range(20)]
    known = [step._replace(phases_ns=(0, 0, 5 * MS, 5 * MS, 0, 0)) for step in steps]
    recorder, hooks = Recorder(loop=StepSeries(steps), cached=StepSeries(known), recompiled=recompiled), StepHooks()
    recorder.batch_times.add(known)
    measured = recorder.measurements(Sources(hooks), hooks, "cpu", MACHINE)
    assert measured.sized
    assert measured.loop.median == pytest.approx(usual)
    assert any(note.startswith("88 % of the time") for note in measured.notes) == (not recompiled)

"""Rare steps: what comes now and then is in the mean step, and is the verdict where it holds much of the time. With real programs below."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.diagnose.clock import Clock
from tests.diagnose.measured import LOG, on_cpu, on_gpu
from tests.diagnose.measuring import measure_script

from stoker.diagnose import profilers as sampling
from stoker.diagnose import rare as module
from stoker.diagnose.hooks import StepHooks, StepTimes
from stoker.diagnose.measurements import Loader, Measurements, RareSteps, SourceLine, Stretch
from stoker.diagnose.profilers import Sampler
from stoker.diagnose.rare import Periods, slow_of, slow_of_windows, verdict_of
from stoker.diagnose.recorder import Recorder
from stoker.diagnose.rule import conclude, dominant_rare_steps, doubt
from stoker.diagnose.thresholds import RULE

UPLOAD = SourceLine(file="train.py", line=12, function="upload")
CALLED = SourceLine(file="train.py", line=41, function="main")


def steps_with(every: int, longer: float, *, number: int = 100, step: float = 0.010) -> list[float]:
    """Steps that vary a little, with a slow one after so many."""
    usual = [step * (1 + 0.1 * (place % 3)) for place in range(number)]
    return [one + (longer if place % every == every - 1 else 0.0) for place, one in enumerate(usual)]


# ---- which steps are rare, and what a step takes ----


@pytest.mark.promise("P17")
@pytest.mark.parametrize(("every", "longer"), [(25, 4.0), (10, 0.2), (20, 0.05), (5, 0.03), (4, 0.02)])
def test_the_mean_is_that_of_whole_periods(every: int, longer: float) -> None:
    seconds = steps_with(every, longer)
    for last in range(2 * every + 1, len(seconds)):  # wherever the window ends
        slow = slow_of(seconds[:last])
        assert slow is not None
        assert slow.every == every
        assert slow.mean == pytest.approx(0.011 + longer / every, rel=0.05)
        assert slow.share == pytest.approx(longer / every / slow.mean, rel=0.1)


def test_negative_control_the_mean_of_a_window_that_ends_behind_a_slow_step_is_another() -> None:
    seconds = steps_with(25, 4.0)[20:25]  # as a window of one second ends, whose last step takes four
    assert sum(seconds) / len(seconds) > 4 * (0.011 + 4.0 / 25)
    slow = slow_of(seconds)
    assert slow is not None
    assert slow.every is None, "and how often it comes is said to be unknown"


@pytest.mark.parametrize("seconds", [[], [0.01], [0.01] * 50, steps_with(2, 0.05), steps_with(3, 0.05)[:6], [0.0] * 20])
def test_steps_without_rare_ones(seconds: list[float]) -> None:
    """None of them is far from the rest, or so many are that they are not rare."""
    slow = slow_of(seconds)
    assert slow is None or len(slow.at) <= len(seconds) / 3


def test_steps_of_a_busy_machine_do_not_hide_the_period() -> None:
    seconds = [one * (3.0 if place % 7 == 3 else 1.0) for place, one in enumerate(steps_with(25, 4.0))]
    slow = slow_of(seconds)
    assert slow is not None
    assert slow.every == 25


def test_slow_steps_in_a_row_have_no_period_of_one() -> None:
    """A neighbour that came and went: they hold their part of the window, not all of the time between the first and the last."""
    slow = slow_of([0.01] * 30 + [0.02] * 4 + [0.01] * 30)
    assert slow is not None
    assert slow.share == pytest.approx(4 * 0.01 / 0.68)
    assert slow.every == 16
    assert slow.mean == pytest.approx(0.68 / 64)


def test_slow_steps_of_one_window_have_no_more_of_the_time_than_in_all() -> None:
    noisy = [0.01, 0.02, 0.01, 0.01] * 5
    alone = slow_of(noisy)
    assert alone is not None
    assert alone.share > RULE.rare_verdict_share
    together = slow_of_windows([noisy, *[[0.01] * 40] * 4])
    assert together is not None
    assert together.share < 0.03
    assert together.mean == pytest.approx((0.25 + 1.6) / 180)


def test_all_windows_of_a_periodic_program_agree() -> None:
    seconds = steps_with(25, 4.0, number=120)
    noise = [0.02, 0.01, 0.01, 0.01, 0.01] * 4
    slow = slow_of_windows([noise, seconds[:100], seconds[22:25], seconds[20:25], [0.01] * 10])
    assert slow == slow_of(seconds[:100])


def test_a_window_at_another_speed_has_no_slow_steps() -> None:
    assert slow_of_windows([[0.01] * 30, [0.016] * 20, [0.01] * 20]) is None
    assert slow_of([0.01] * 30 + [0.016] * 20 + [0.01] * 20) is not None, "negative control"


# ---- windows that go on ----


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "now_ns", clock)
    return clock


def window(clock: Clock, periods: Periods, seconds: list[float], *, base: int = 30) -> int:
    """How many steps a window has that may end after `base`."""
    for number, one in enumerate(seconds, 1):
        clock.now += int(one * 1e9)
        if number >= base and not periods.go_on(one, lambda number=number: seconds[:number]):  # type: ignore[misc]
            return number
    return len(seconds)


def test_a_window_continues_until_several_periods_were_seen(clock: Clock) -> None:
    assert window(clock, Periods(until_ns=10**12), steps_with(25, 4.0, number=400)) == 25 * (RULE.rare_periods + 1)


def test_a_window_ends_at_its_time_however_rare_they_are(clock: Clock) -> None:
    assert window(clock, Periods(until_ns=5 * 10**9), steps_with(25, 4.0, number=400)) == 50


@pytest.mark.parametrize("seconds", [[0.01] * 400, steps_with(100, 0.02, number=400)])
def test_negative_control_a_window_without_them_has_its_usual_length(clock: Clock, seconds: list[float]) -> None:
    assert window(clock, Periods(until_ns=10**12), seconds) == 30


def test_rare_steps_that_were_seen_elsewhere_are_waited_for(clock: Clock) -> None:
    seconds = steps_with(100, 2.0, number=1000)
    assert window(clock, Periods(until_ns=10**12), seconds) == 30
    assert window(clock, Periods(until_ns=10**12, expected=True), seconds) == 100 * (RULE.rare_periods + 1)


# ---- where their time is ----


def usual(sampler: Sampler, clock: Clock) -> None:
    clock.now += 10
    sampler.sample(sys._getframe())


def rare(sampler: Sampler, clock: Clock) -> None:
    clock.now += 500
    sampler.sample(sys._getframe())


def elsewhere(sampler: Sampler, clock: Clock) -> None:
    clock.now += 500
    sampler.sample(sys._getframe())


def sampled(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, *does: Callable[[Sampler, Clock], None], times: int = 1, library: bool = False
) -> sampling.SlowLine:
    """Ten steps, the last two of which do something more, or the same several times."""
    monkeypatch.setattr(sampling, "now_ns", clock)
    monkeypatch.setattr(sampling, "is_own", lambda file: file == __file__ and not library)
    sampler = Sampler(StepHooks(), slow_from=1e-7)
    for number in range(10):
        slow = number >= 8
        for _ in range(times if slow else 1):
            usual(sampler, clock)
        for do in does if slow else ():
            do(sampler, clock)
        sampler.end_step(StepTimes((0, 0, 0, 0, 0, 1010 if slow else 10), False))
    line = sampler.rare_line()
    assert line is not None
    return line


def test_the_line_is_the_innermost_that_has_most_of_the_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    line = sampled(clock, monkeypatch, rare, rare)
    assert line.phase == "rest"
    assert line.alone
    assert line.place is not None
    assert line.place.function == "rare"
    assert line.called is not None
    assert line.called.function == "sampled"


def test_two_lines_that_share_it_are_reported_by_who_calls_them(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    line = sampled(clock, monkeypatch, rare, elsewhere)
    assert line.place is not None
    assert line.place.function == "sampled"


def test_negative_control_steps_that_only_take_longer_have_no_line_of_their_own(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = sampled(clock, monkeypatch, times=4)
    assert not line.alone


def test_a_library_that_does_something_now_and_then_is_named(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its outermost function that other steps do not call, as `Trainer._maybe_log_save_evaluate`."""
    line = sampled(clock, monkeypatch, rare, rare, library=True)
    assert line.alone
    assert line.place is not None
    assert line.place.function == "rare"
    assert line.called is None


def test_what_calls_the_file_of_the_user_is_not_to_blame(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three lines of the user share the time, so the outermost common call is one that starts the program."""
    monkeypatch.setattr(sampling, "now_ns", clock)
    monkeypatch.setattr(sampling, "is_own", lambda file: file == "train.py")
    run: dict[str, Any] = {"sampler": Sampler(StepHooks(), slow_from=1e-7), "clock": clock, "usual": usual, "sys": sys}
    lines = "def usual():\n    clock.now += 500\n    sampler.sample(sys._getframe())\nusual()\nusual()\nusual()\n"
    exec(compile(lines, "train.py", "exec"), run)
    run["sampler"].end_step(StepTimes((0, 0, 0, 0, 0, 1500), False))
    line = run["sampler"].rare_line()
    assert line is not None
    assert line.place is None
    assert not line.alone


def test_samples_during_the_end_of_a_step_belong_to_the_next() -> None:
    """The timer goes on. If each sample took longer to assign than the next takes to come, a step would never end."""
    sampler, calls = Sampler(StepHooks(), slow_from=0.0), 0

    class Interrupted(Counter[Any]):
        def __setitem__(self, key: Any, value: int) -> None:
            nonlocal calls
            calls += 1
            assert calls <= 3, "the step does not end"
            sampler.sample(sys._getframe())
            super().__setitem__(key, value)

    sampler._stacks = (Interrupted(), Interrupted())
    for _ in range(3):
        sampler.sample(sys._getframe())
    sampler.end_step(StepTimes((0, 0, 0, 0, 0, 10), False))
    assert (calls, len(sampler._step)) == (3, 3)


def test_no_line_without_rare_steps() -> None:
    sampler = Sampler(StepHooks(), slow_from=1.0)
    sampler.end_step(StepTimes((0, 0, 0, 0, 0, 10), False))
    assert sampler.rare_line() is None


# ---- the recorder ----


def test_steps_at_which_epochs_end_count_for_the_period() -> None:
    """Their times are not in T."""
    recorder, seconds = Recorder(), steps_with(25, 4.0)
    recorder.loop.begin_window()
    for place, one in enumerate(seconds):
        times = StepTimes((0, 0, 0, 0, 0, int(one * 1e9)), place % 5 == 0)
        recorder.loop.add(times)
    slow = recorder.slow_steps(bursts=False)
    assert slow is not None
    assert slow.every == 25
    recorder.loop.windows[0] = recorder.loop.steps
    without = recorder.slow_steps(bursts=False)
    assert without is not None
    assert without.every == 20, "negative control"


def test_waits_for_batches_that_come_in_bursts_are_not_rare_steps() -> None:
    recorder = Recorder()
    recorder.loop.begin_window()
    for place in range(100):
        recorder.loop.add(StepTimes((40_000_000 if place % 4 == 0 else 0, 0, 0, 0, 0, 5_000_000), False))
    assert recorder.slow_steps(bursts=True) is None
    assert recorder.slow_steps(bursts=False) is not None
    recorder.loop.windows[0][24] = recorder.loop.windows[0][74] = StepTimes((0, 0, 0, 0, 0, 900_000_000), False)
    slow = recorder.slow_steps(bursts=True)
    assert slow is not None
    assert slow.every == 50
    assert slow.mean == pytest.approx(0.9 / 50 + 0.005 + 0.010, rel=0.05)


# ---- the verdict ----


def with_rare(share: float, *, every: float | None = 25.0, device: str = "cpu", **more: Any) -> Measurements:
    """Ten milliseconds a step, and rare ones that hold so much of the time."""
    measured = on_cpu() if device == "cpu" else on_gpu(9.8, cached=9.7, device=9.5, kernels=100)
    wall = measured.loop.median / (1 - share)
    seconds = measured.loop.median + (wall - measured.loop.median) * (every or 100.0)
    found = RareSteps(share=share, every=every, seconds=seconds, others=measured.loop.median, **more)
    return msgspec.structs.replace(measured, rare=found, wall_seconds=wall)


@pytest.mark.promise("P17")
def test_of_two_wastes_the_larger_one_comes_first() -> None:
    """Validation takes a fifth of the time between epochs; the loader takes seven tenths of the rest."""
    usual = on_cpu(next=25.0)
    rare = RareSteps(share=0.2, every=8.0, seconds=0.05, others=0.03, between_epochs=True, alone=True, place=UPLOAD)
    finding = conclude(msgspec.structs.replace(usual, rare=rare, wall_seconds=usual.loop.median / 0.8))
    assert [cause.verdict for cause in finding.causes[:2]] == ["data", "host"]
    assert finding.causes[0].share == pytest.approx(0.8 * conclude(usual).causes[0].share)
    assert finding.causes[1].share == pytest.approx(0.2, abs=0.01)
    assert finding.why == conclude(usual).why
    assert finding.next[-1].name == "rare"
    larger = msgspec.structs.replace(usual, rare=msgspec.structs.replace(rare, share=0.6), wall_seconds=usual.loop.median / 0.4)
    assert conclude(larger).verdict == "host"


def test_work_does_not_come_before_rare_steps() -> None:
    finding = conclude(with_rare(0.2, phase="rest", alone=True, place=UPLOAD))
    assert finding.causes[0].verdict == "host"
    assert finding.causes[1].verdict == "compute"
    assert finding.causes[1].share > finding.causes[0].share


OF_LOADER = Loader(kind="DataLoader", place=CALLED)


@pytest.mark.promise("P17")
@pytest.mark.parametrize(
    ("rare", "loader", "verdict"),
    [
        ({"between_epochs": True, "place": CALLED}, OF_LOADER, "data"),  # it ends its workers and starts others there
        ({"between_epochs": True, "place": UPLOAD}, OF_LOADER, "host"),
        ({"between_epochs": True, "place": CALLED}, Loader(kind="DataLoader"), "host"),
        ({"between_epochs": True, "place": UPLOAD, "in_outer_loop": True}, OF_LOADER, "data"),  # the next chunk of the data
        ({"phase": "prepare"}, OF_LOADER, "host"),  # a checkpoint at the top of the loop
        ({"phase": "prepare"}, Loader(kind="loop"), "data"),  # the loop makes its batches there
        ({"phase": "prepare", "alone": False}, OF_LOADER, "data"),  # making a batch takes longer now and then
        ({"phase": "next", "seconds": 0.02}, OF_LOADER, "data"),
        ({"phase": "next", "seconds": 0.02, "alone": False}, OF_LOADER, None),
        ({"every": None}, Loader(kind="loop"), None),
    ],
)
def test_what_rare_steps_wait_for_and_where_says_whose_they_are(rare: dict[str, Any], loader: Loader, verdict: str | None) -> None:
    options = {"share": 0.4, "every": 8.0, "seconds": 0.4, "others": 0.01, "alone": True, "place": UPLOAD, **rare}
    assert verdict_of(RareSteps(**options), loader) == verdict


@pytest.mark.promise("P17")
def test_a_crowd_of_workers_explains_irregular_steps() -> None:
    unknown = RareSteps(share=0.2, every=6.0, seconds=0.02, others=0.002)
    crowd = on_cpu(next=20.0, rare=unknown, loader=Loader(kind="DataLoader", workers=2))
    assert dominant_rare_steps(crowd) is None
    assert conclude(crowd).verdict == "data"
    without = msgspec.structs.replace(crowd, loader=Loader(kind="DataLoader"))
    assert conclude(without).verdict == "none", "then it is not known what they are"
    step = crowd.loop.median
    late = Stretch(seconds=[step] * 24 + [2 * step] * 6)  # a mean that is far from the median
    assert conclude(msgspec.structs.replace(crowd, loop=late)).verdict == "data"


@pytest.mark.promise("P17")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_rare_and_holds_the_time_is_the_verdict(device: str) -> None:
    finding = conclude(with_rare(0.61, device=device, phase="rest", alone=True, place=UPLOAD, called=CALLED))
    assert finding.verdict == "host"
    assert finding.causes[0].sentence == "61 % of all time is in 1 of 25 steps, upload (train.py:12)"
    assert finding.causes[0].share == pytest.approx(0.61, abs=0.01)  # and a little in the other steps
    assert sum(cause.share for cause in finding.causes) <= 1.01
    assert finding.place == UPLOAD
    assert finding.why.startswith("upload (train.py:12), called in train.py:41: 1 of 25 steps takes ")
    [step] = finding.next
    assert step.predicted_high == pytest.approx(1 / 0.39)


def test_rare_waits_for_batches_are_data() -> None:
    assert conclude(with_rare(0.5, phase="next", place=UPLOAD)).verdict == "data"


def test_what_passes_between_epochs_is_reported_as_such() -> None:
    finding = conclude(with_rare(0.4, every=50.0, between_epochs=True, place=UPLOAD))
    assert finding.verdict == "host"
    assert "40 % of all time passes between epochs, each of 50 steps, upload (train.py:12)" in finding.causes[0].sentence
    assert "pass after each epoch of 50 steps" in finding.why


@pytest.mark.parametrize(
    ("measured", "reason"),
    [
        (with_rare(0.5, every=None, alone=True, place=UPLOAD), "one of 24 steps took 990 ms at upload (train.py:12) where others"),
        (
            with_rare(0.5, place=LOG, phase="forward"),
            "50 % of all time is in 1 of 25 steps, which take 255 ms where others take 9.8 ms",
        ),
        (with_rare(0.5), "50 % of all time is in 1 of 25 steps"),
        (with_rare(0.5, alone=True), None),
    ],
    ids=["seen once", "more of the same", "line not known", "known"],
)
def test_rare_steps_of_which_too_little_is_known_are_not_verdict(measured: Measurements, reason: str | None) -> None:
    told = doubt(measured)
    assert told is None if reason is None else told is not None and told.startswith(reason)
    finding = conclude(measured)
    assert (finding.verdict == "none") == (reason is not None)


@pytest.mark.promise("P17", control=True)
@pytest.mark.parametrize("share", [0.0, 0.1, RULE.rare_verdict_share])
def test_negative_control_what_holds_little_is_not_the_verdict(share: float) -> None:
    measured = with_rare(share, alone=True, place=UPLOAD)
    assert dominant_rare_steps(measured) is None
    assert conclude(measured).verdict == "compute"


def test_cores_that_others_had_come_first() -> None:
    measured = msgspec.structs.replace(with_rare(0.5, alone=True, place=UPLOAD), waited_for_cores=0.5)
    assert (doubt(measured) or "").startswith("for 50 % of the time other programs had the cores")


def test_rare_steps_and_time_between_epochs_both_count() -> None:
    upload = RareSteps(share=0.4, every=25, seconds=0.1, others=0.01, phase="rest", alone=True, place=UPLOAD)
    valid = RareSteps(share=0.3, every=30, seconds=0.1, others=0.01, between_epochs=True, place=CALLED)
    both = on_cpu(rare=upload, also_rare=valid)
    causes = {cause.verdict: cause.share for cause in conclude(both).causes}
    assert causes["host"] == pytest.approx(0.7, abs=0.01)
    assert sum(causes.values()) == pytest.approx(1.0, abs=0.02)
    assert [step.name for step in conclude(both).next] == ["rare", "rare"]


# ---- programs ----

PROGRAM = """
import gc, sys, time
import torch
torch.set_num_threads(1)
kind = sys.argv[1]
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
batches = list(torch.randn(40, 8, 16))
rows = torch.randn(40, 16)
junk = []

def upload():
    time.sleep(1.5)

def save():
    torch.save(model.state_dict(), "model.pt")
    time.sleep(0.3)

def validate():
    with torch.no_grad():
        for row in rows:
            model(row)
            time.sleep(0.01)

def collect():
    junk[:] = [[] for _ in range(1_000_000)]
    gc.collect()

def log():
    time.sleep(0.1)

def total():  # one call into C, which holds the interpreter
    sum(range(10_000_000))

class Shards:
    def __iter__(self):
        for number in range(1000):
            self.read()
            yield from batches[:30]
    def read(self):
        time.sleep(0.6)

does = {"total": (20, total)}
does |= {"upload": (25, upload), "checkpoint": (10, save), "validation": (20, validate), "gc": (15, collect), "logging": (5, log)}
every, do = does.get(kind, (1, lambda: None))
step = 0
for epoch in range(100_000):
    for x in Shards() if kind == "shards" else batches:
        loss = model(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % every == 0:
            do()
    if kind == "epochs":
        upload()
"""
LINES = {
    "upload": (25, 1.5, "upload"),
    "checkpoint": (10, 0.3, "save"),
    "validation": (20, 0.4, "validate"),
    "gc": (15, 0.0, "collect"),
    "logging": (5, 0.1, "log"),
    "total": (20, 0.05, "total"),
    "shards": (30, 0.6, "Shards.read"),
    "epochs": (40, 1.5, "upload"),
}


@pytest.fixture
def measure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Measurements]:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)

    def measure(kind: str) -> Measurements:
        """What a busy machine adds is left out: whether others had the cores is not what is tested."""
        measured = measure_script("train.py", [kind], quiet=True, pace=0.6)
        return msgspec.structs.replace(measured, waited_for_cores=0.0)

    return measure


@pytest.mark.promise("P17")
@pytest.mark.slow
@pytest.mark.parametrize("kind", LINES)
def test_a_program_that_does_something_now_and_then(kind: str, measure: Callable[[str], Measurements]) -> None:
    """A sleep is a lower bound of what a step takes, however busy the machine is."""
    every, sleeps, function = LINES[kind]
    finding = conclude(measure(kind))
    measured = finding.measurements
    assert measured is not None
    assert measured.rare is not None
    assert measured.rare.every == pytest.approx(every, rel=0.15)
    assert measured.rare.place is not None
    # A collection of garbage is told of behind it, and may begin while lists are made.
    assert measured.rare.place.function.startswith(function) or (kind == "gc" and measured.rare.place.function == "<module>")
    assert measured.rare.between_epochs == (kind == "epochs")
    assert finding.verdict == ("data" if kind == "shards" else "host"), finding.why
    assert finding.place == measured.rare.place
    if sleeps:
        assert measured.wall_seconds is not None
        assert measured.wall_seconds >= sleeps / every / 1.15


@pytest.mark.promise("P17", control=True)
@pytest.mark.slow
def test_negative_control_a_program_that_does_the_same_in_each_step(measure: Callable[[str], Measurements]) -> None:
    finding = conclude(measure("nothing"))
    assert finding.measurements is not None
    rare = dominant_rare_steps(finding.measurements)
    assert rare is None or verdict_of(rare, finding.measurements.loader) is None, (
        "a busy machine has slow steps, too, but no line is to blame for them"
    )


@pytest.mark.promise("P17", control=True)
@pytest.mark.slow
def test_negative_control_the_median_says_something_else(measure: Callable[[str], Measurements]) -> None:
    measured = measure("checkpoint")
    assert measured.wall_seconds is not None
    assert measured.wall_seconds > 3 * measured.loop.median
    assert measured.wall_seconds >= 0.3 / 10 * 0.85

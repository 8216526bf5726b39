"""The detector: a slowdown of 10 % is found within 100 steps, and noise is not one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from benchmarks.step_times import MODELS, blocks_of, gaussian

from stoker._types import Array
from stoker.watching import detector
from stoker.watching.detector import (
    BLOCK,
    CALIBRATION,
    DELAY,
    FAST_HISTORY,
    FAST_SHIFT,
    FAST_WINDOW,
    WARM_UP,
    Detector,
    SlowdownDetector,
)

TENTH = math.log(1.1)


def found(logarithms: Array, times: SlowdownDetector | None = None) -> list[int]:
    """The steps after which a slowdown is reported."""
    times = times or SlowdownDetector()
    return [(number + 1) * BLOCK for number, block in enumerate(blocks_of(logarithms, block=BLOCK)) if times.add(block) == "slower"]


def slowed(logarithms: Array, at: int, by: float = TENTH) -> Array:
    logarithms[at:] += by
    return logarithms


def fast_detector() -> Detector:
    return Detector(window=FAST_WINDOW, history=FAST_HISTORY, least_shift=FAST_SHIFT, warm_up=WARM_UP, adapts=True)


@pytest.mark.parametrize("offset", range(0, BLOCK, 2))
def test_a_tenth_is_found_within_100_steps(offset: int, rng: np.random.Generator) -> None:
    at = 3000 + offset
    (step,) = found(slowed(gaussian(4000, rng), at))
    assert at < step <= at + 89, "9 steps of a block that has begun, and eight blocks"


def test_it_is_found_at_each_of_100_moments_if_steps_scatter_by_3_percent(rng: np.random.Generator) -> None:
    moments = rng.integers(1500, 1600, 100)
    delays = [next((step - at for step in found(slowed(gaussian(1700, rng, 0.03), at))), 1000) for at in moments]
    assert all(delay > 0 for delay in delays)
    assert sum(delay <= 100 for delay in delays) >= 98


def test_soon_after_the_start_too(rng: np.random.Generator) -> None:
    (step,) = found(slowed(gaussian(2000, rng), 1000))
    assert 1000 < step <= 1100


@pytest.mark.parametrize("name", MODELS)
def test_noise_is_not_a_slowdown(name: str, rng: np.random.Generator) -> None:
    assert found(MODELS[name](40_000, rng)) == []


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("checkpoint, then 20 slow steps", {"FAST_WINDOW": 1}),
        ("AR(1) over 100 steps, 3 %", {"NOISE_FACTOR": 0.0}),
        ("five lengths, at random", {"NOISE_FACTOR": 0.0}),
        ("bursts of 5 to 40 steps", {"FAST_WINDOW": 1}),
    ],
)
def test_negative_control_noise_would_be_one(
    name: str, change: dict[str, float], rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    for constant, value in change.items():
        monkeypatch.setattr(detector, constant, value)
    assert found(MODELS[name](100_000, rng)), "without this part of the algorithm there are false alarms"


def test_what_is_too_small_is_not_reported(rng: np.random.Generator) -> None:
    assert found(slowed(gaussian(20_000, rng), 5000, 0.03)) == []


def test_a_drift_is_found_by_the_slow_detector(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    drift = gaussian(150_000, rng) + np.linspace(0, 2 * TENTH, 150_000)
    times = SlowdownDetector()
    (first, *_) = found(drift, times)
    assert 50_000 < first < 120_000, "a tenth was reached at step 75,000"
    monkeypatch.setattr(detector, "SLOW_BLOCK", 1 << 30)
    assert found(drift) == [], "negative control: the baseline of the fast detector follows"


def test_a_slow_device_is_found_though_the_host_waits_for_it_only_now_and_then(rng: np.random.Generator) -> None:
    name = "the host waits for the device every 50 steps"
    steps = MODELS[name](40_000, rng)
    steps[20_000:] = np.where(np.arange(20_000) % 50 == 0, math.log(40) + 0.15, steps[20_000:])
    (step,) = found(steps)
    assert 20_000 < step < 23_000


@pytest.mark.parametrize(("period", "length"), [(1000, 500), (5000, 150)])
def test_phases_that_come_again_are_reported_three_times(period: int, length: int, rng: np.random.Generator) -> None:
    phases = np.where(np.arange(60_000) % period >= period - length, 0.2, 0.0)
    assert len(found(gaussian(60_000, rng, 0.01) + phases)) == 3


@pytest.mark.parametrize(
    ("start", "end", "rise", "within"),
    [(42_000, 44_000, 0.2, 400), (42_000, 42_150, 0.4, 100)],
    ids=["longer", "larger"],
)
def test_what_is_longer_or_larger_than_the_phases_before_is_reported(
    start: int, end: int, rise: float, within: int, rng: np.random.Generator
) -> None:
    steps = gaussian(45_000, rng, 0.01) + np.where(np.arange(45_000) % 5000 >= 4850, 0.2, 0.0)
    steps[start:end] += rise
    *_, last = found(steps)
    assert start < last <= start + within


@pytest.mark.parametrize(("then", "reported"), [([0.2] * 6, 4), ([0.0] * 5 + [0.05], 3)], ids=["stays", "fades"])
def test_a_phase_is_reported_only_while_its_steps_are_slow(then: list[float], reported: int) -> None:
    """A block in six that is a little slow keeps a phase from its end; it once was reported as 0 % slower."""
    detector = fast_detector()
    levels = [0.0] * 100 + 3 * ([0.2] * 12 + [0.0] * 12) + [0.2] * 12 + 20 * then
    assert [detector.add(level) for level in levels].count("slower") == reported


def test_negative_control_what_came_before_long_ago_is_reported_again(rng: np.random.Generator) -> None:
    steps = gaussian(60_000, rng, 0.01)
    for at in (2000, 3000, 4000, 50_000):
        steps[at : at + 150] += 0.2
    assert [step // 1000 for step in found(steps)] == [2, 3, 4, 50]


def test_strong_noise_needs_longer(rng: np.random.Generator) -> None:
    times = SlowdownDetector()
    (step,) = found(slowed(MODELS["lognormal, 10 %"](24_000, rng), 20_000), times)
    assert 20_100 < step < 23_000
    assert SlowdownDetector().smallest == math.inf
    calm = SlowdownDetector()
    assert found(gaussian(20_000, rng), calm) == []
    assert calm.smallest == pytest.approx(math.expm1(FAST_SHIFT))


def test_one_slowdown_is_reported_once_and_its_end_too() -> None:
    times = SlowdownDetector()
    changes = [times.add([1000] * BLOCK) for _ in range(100)]
    changes += [times.add([1200] * BLOCK) for _ in range(20)]
    assert times.is_slow
    assert times.change == (pytest.approx(1000), pytest.approx(1200))
    assert times.window_steps == 80
    changes += [times.add([1000] * BLOCK) for _ in range(20)]
    assert not times.is_slow
    assert [change for change in changes if change] == ["slower", "recovered"]


def test_a_slowdown_that_stays_becomes_normal_and_the_next_is_found() -> None:
    times = SlowdownDetector()
    levels = [1000] * 100 + [1200] * 500 + [1500] * 10
    changes = {number: change for number, level in enumerate(levels) if (change := times.add([level] * BLOCK))}
    assert changes == {107: "slower", 607: "slower"}


def test_a_speedup_becomes_normal() -> None:
    times = SlowdownDetector()
    levels = [2000] * 100 + [1000] * 100 + [1150] * 10
    changes = {number: change for number, level in enumerate(levels) if (change := times.add([level] * BLOCK))}
    assert changes == {207: "slower"}


def test_steps_that_take_no_time_are_accepted() -> None:
    times = SlowdownDetector()
    assert [times.add([0] * BLOCK) for _ in range(200)] == [None] * 200


def test_a_burst_beside_rare_long_steps_is_not_a_slowdown(rng: np.random.Generator) -> None:
    """All of the last eight blocks are above the threshold, the first and the last two of them by one long step each."""
    times = SlowdownDetector()
    normal = (1e6 * np.exp(gaussian(2000, rng, 0.005))).astype(int).reshape(-1, BLOCK).tolist()
    assert not any(times.add(block) for block in normal)
    logged = [[3_000_000, *[1_000_000] * (BLOCK - 1)]]
    slow = [[1_400_000] * BLOCK]
    window = logged + slow * 5 + logged * 2
    assert len(window) == FAST_WINDOW
    assert not any(times.add(block) for block in window)


def test_negative_control_without_that_check_it_would_be_one(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SlowdownDetector, "_is_slow_without_rare_steps", lambda self, level: True)
    with pytest.raises(AssertionError):
        test_a_burst_beside_rare_long_steps_is_not_a_slowdown(rng)


def test_a_neighbour_in_every_fourth_step_is_one(rng: np.random.Generator) -> None:
    times = SlowdownDetector()
    blocks = (1e6 * np.exp(gaussian(2000, rng, 0.02))).astype(int)
    blocks[1500::4] *= 4
    changes = [times.add(block) for block in blocks.reshape(-1, BLOCK).tolist()]
    assert 150 <= changes.index("slower") <= 160


def slow_twin(levels: Sequence[float]) -> Iterable[int]:
    """The definition, computed again from all levels at each block; it knows neither ends nor speedups."""
    levels = levels[WARM_UP:]
    statistics = [min(levels[end - FAST_WINDOW : end]) for end in range(FAST_WINDOW, len(levels) + 1)]
    baseline = threshold = math.nan
    due = CALIBRATION
    for number, statistic in enumerate(statistics):
        if statistic > baseline + threshold:
            yield WARM_UP + FAST_WINDOW - 1 + number
            return
        history = sorted(statistics[: max(0, number + 1 - DELAY)][-FAST_HISTORY:])
        if number + 1 - DELAY >= due:
            size = len(history)
            due += max(4, size // 8)
            baseline = history[size // 2]
            spread = max(baseline - history[size // 10], history[size - 1 - size // 10] - baseline)
            threshold = max(FAST_SHIFT, 6 * (1 + 24 / size) * spread / 1.2816)


@pytest.mark.parametrize("rise", [0.0, 0.06, 0.1, 0.3])
def test_it_is_its_slow_twin(rise: float, rng: np.random.Generator) -> None:
    levels = (rng.standard_normal(900) * 0.01 + np.where(np.arange(900) > 700, rise, 0)).tolist()
    fast = fast_detector()
    first = next((number for number, level in enumerate(levels) if fast.add(level) == "slower"), None)
    assert first == next(iter(slow_twin(levels)), None)

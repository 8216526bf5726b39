"""The detector: a slowdown of 10 % is found within 100 steps, and noise is not one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
from benchmarks.watch.step_times import MODELS, blocks_of, gaussian

from stoker._types import Array
from stoker.watch import detector
from stoker.watch.detector import (
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


@pytest.mark.promise("P22")
@pytest.mark.parametrize("offset", range(0, BLOCK, 2))
def test_a_tenth_is_found_within_100_steps(offset: int, rng: np.random.Generator) -> None:
    at = 3000 + offset
    (step,) = found(slowed(gaussian(4000, rng), at))
    assert at < step <= at + 89, "9 steps of a block that has begun, and eight blocks"


@pytest.mark.promise("P22")
@pytest.mark.parametrize("name", MODELS)
def test_noise_is_not_a_slowdown(name: str, rng: np.random.Generator) -> None:
    assert found(MODELS[name](40_000, rng)) == []


@pytest.mark.promise("P22", control=True)
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


@pytest.mark.promise("P22", control=True)
def test_what_is_too_small_is_not_reported(rng: np.random.Generator) -> None:
    assert found(slowed(gaussian(20_000, rng), 5000, 0.03)) == []


@pytest.mark.promise("P22")
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


@pytest.mark.promise("P22")
@pytest.mark.parametrize("rise", [0.0, 0.06, 0.1, 0.3])
def test_the_detector_is_its_slow_twin(rise: float, rng: np.random.Generator) -> None:
    levels = (rng.standard_normal(900) * 0.01 + np.where(np.arange(900) > 700, rise, 0)).tolist()
    fast = fast_detector()
    first = next((number for number, level in enumerate(levels) if fast.add(level) == "slower"), None)
    assert first == next(iter(slow_twin(levels)), None)

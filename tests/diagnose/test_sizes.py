"""Steps of batches of different sizes are brought to one size, by what the same batches take at no cost of data."""

from __future__ import annotations

import pytest

from stoker.diagnose.hooks import StepTimes
from stoker.diagnose.recorder import StepSeries
from stoker.diagnose.sizes import BatchTimes, differ

MS = 1_000_000
SIZES = [1.0, 2.0, 4.0, 3.0] * 6


def batch_times() -> BatchTimes:
    """Batch n takes as many milliseconds as its size says."""
    times = BatchTimes()
    for _ in range(3):
        times.add(series().steps)
    return times


def series(*, longer: float = 1.0, first: int = 0) -> StepSeries:
    """A window with each batch once, in which steps take `longer` times what they take without data."""
    steps = [StepTimes((0, 0, 0, 0, 0, int(longer * size * MS)), False, 0, first + at) for at, size in enumerate(SIZES)]
    return StepSeries(steps)


def test_steps_of_many_sizes_take_the_time_of_a_usual_batch() -> None:
    level = series(longer=1.5).of_usual_batches(batch_times()).seconds()
    assert level == pytest.approx([1.5 * 2.5e-3] * len(SIZES))
    assert max(series(longer=1.5).seconds()) == 4 * min(series(longer=1.5).seconds()), "negative control"


def test_steps_of_batches_that_were_not_measured_are_left_out_unless_few_remain() -> None:
    both = StepSeries(series().steps, series(first=1000).steps)
    assert len(both.of_usual_batches(batch_times()).steps) == len(SIZES)
    unknown = series(first=1000)
    assert unknown.of_usual_batches(batch_times()) is unknown


def test_a_rare_step_stays_slow() -> None:
    slow = series()
    slow.windows[0][5] = slow.steps[5]._replace(phases_ns=(0, 0, 0, 0, 0, int(20 * SIZES[5] * MS)))
    level = slow.of_usual_batches(batch_times()).seconds()
    assert level[5] == pytest.approx(20 * level[4])


def test_a_smaller_last_batch_does_not_count() -> None:
    assert not differ([4096] * 31 + [1024])
    assert not differ([0] * 32)
    assert differ([1000, 2000, 3000, 4000, 1500, 2500])

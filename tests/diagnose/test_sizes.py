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


@pytest.mark.parametrize(
    ("phases", "seconds"),
    [((1, 0, 4, 6, 0, 0), 3), ((1, 0, 9, 1, 0, 0), 11), ((1, 0, 1, 1, 0, 8), 11), ((9, 0, 1, 1, 0, 0), 11)],
    ids=["first of its size", "code in the forward pass", "code after the update", "loading"],
)
def test_what_the_first_batch_of_a_size_takes_longer_is_left_out(phases: tuple[int, ...], seconds: int) -> None:
    times = BatchTimes()
    times.add([StepTimes((0, 0, MS, MS, 0, 0), False, 0, 0)])
    step = times.of_known_size(StepTimes(tuple(spent * MS for spent in phases), False, 0, 0))
    assert step.seconds == pytest.approx(seconds / 1e3)
    assert step.phases_ns[0] == phases[0] * MS
    unknown = StepTimes(tuple(spent * MS for spent in phases), False, 0, 1)
    assert times.of_known_size(unknown) is unknown


def test_a_smaller_last_batch_does_not_count() -> None:
    assert not differ([4096] * 31 + [1024])
    assert not differ([0] * 32)
    assert differ([1000, 2000, 3000, 4000, 1500, 2500])

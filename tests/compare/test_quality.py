"""Quality over seeds: luck is not a gain, and repeats with the same bits are one repeat."""

from __future__ import annotations

import numpy as np
import pytest

from stoker.compare.quality import Repeat, check_pattern, final_loss, printed_metric, quality_of
from stoker.errors import OptionError, TrainError


def repeats(values: list[float]) -> list[Repeat]:
    return [Repeat(seed=number, metric=value, losses=[value, number]) for number, value in enumerate(values)]


def test_a_true_gain_is_found_and_its_direction_is_that_of_the_metric() -> None:
    rng = np.random.default_rng(0)
    before = rng.normal(1.0, 0.01, 8)
    after = before - 0.05 + rng.normal(0, 0.005, 8)
    sides = repeats(before.tolist()), repeats(after.tolist())
    assert quality_of(*sides, name="loss").verdict == "better"
    assert quality_of(*sides, name="accuracy", higher=True).verdict == "worse"
    assert quality_of(sides[0], sides[0], name="loss").verdict == "unknown"


def test_the_best_of_twenty_seeds_is_not_better_than_fresh_seeds() -> None:
    rng = np.random.default_rng(1)
    found = []
    for _ in range(200):
        lucky = min(rng.normal(1.0, 0.02, 20))  # what its author saw
        quality = quality_of(repeats(rng.normal(1.0, 0.02, 8).tolist()), repeats(rng.normal(1.0, 0.02, 8).tolist()), name="loss")
        found.append(quality.verdict == "better")
        assert lucky < 1.0
    assert np.mean(found) <= 0.05


def test_repeats_with_the_same_bits_count_once() -> None:
    before = [Repeat(seed=number, metric=1.0, losses=[1.0, 0.5]) for number in range(8)]
    after = [Repeat(seed=number, metric=0.9, losses=[0.9, 0.4]) for number in range(8)]
    quality = quality_of(before, after, name="loss")
    assert (quality.pairs, quality.shared, quality.verdict) == (1, 7, "unknown")
    # Also where only one side ignores its seed.
    assert quality_of(before, repeats([0.9 + 0.001 * number for number in range(8)]), name="loss").verdict == "unknown"


def test_a_metric_that_differs_on_the_same_bits_is_unexplained() -> None:
    before = [Repeat(seed=1, metric=0.5, losses=[1.0]), Repeat(seed=2, metric=0.6, losses=[2.0])]
    after = [Repeat(seed=1, metric=0.7, losses=[1.0]), Repeat(seed=2, metric=0.6, losses=[2.0])]
    assert quality_of(before, after, name="accuracy").unexplained == 1
    assert quality_of(before, before, name="accuracy").unexplained == 0


def test_no_worse_needs_the_whole_interval() -> None:
    rng = np.random.default_rng(3)
    before = rng.normal(1.0, 0.01, 10)
    after = before + rng.normal(0, 0.002, 10)
    sides = repeats(before.tolist()), repeats(after.tolist())
    assert quality_of(*sides, name="loss", margin=0.01).no_worse
    assert not quality_of(*sides, name="loss", margin=0.0001).no_worse
    assert not quality_of(*sides, name="loss").no_worse


def test_the_last_printed_value_counts() -> None:
    output = "accuracy 0.5\nloss 3\naccuracy 0.75\n"
    assert printed_metric(output, r"accuracy ([0-9.]+)") == 0.75
    for text in ("nothing", "accuracy ..."):
        with pytest.raises(TrainError, match="accuracy"):
            printed_metric(text, r"accuracy ([0-9.]+)")


@pytest.mark.parametrize("pattern", ["accuracy", "(a)(b)", "("])
def test_a_pattern_has_one_group(pattern: str) -> None:
    with pytest.raises(OptionError) as error:
        check_pattern(pattern)
    assert error.value.parameter == "metric"


def test_the_final_loss_is_that_of_the_last_tenth() -> None:
    assert final_loss([9.0] * 90 + [1.0] * 10) == 1.0
    assert final_loss([2.0]) == 2.0

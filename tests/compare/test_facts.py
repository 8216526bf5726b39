"""Facts: each difference between two runs is said, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from tests.compare.observations import STEPS, observed, samples

from stoker.compare.facts import facts_of, repeats_of
from stoker.compare.observed import Observed

ROWS = list(range(4 * STEPS))


def different(after: Observed, *, parted: int | None = None) -> set[str]:
    return {fact.name for fact in facts_of(observed(), after, parted=parted) if fact.same is False}


@pytest.mark.promise("P34")
@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, set()),
        ({"training": samples([*ROWS[4:], *ROWS[:4]])}, {"samples"}),
        ({"training": samples([number % 40 for number in ROWS])}, {"samples", "repeats"}),
        ({"training": samples([-number - 1 for number in ROWS])}, {"samples"}),
        ({"training": samples(ROWS, mode=False)}, {"mode"}),
        ({"epoch_samples": 70}, {"epoch"}),
        ({"random": {"torch": [0, 1, 99, *range(3, STEPS)]}}, {"random"}),
        ({"weights": ["(4,) torch.float32 1a", "(2, 4) torch.float32 2c"]}, {"weights"}),
        ({"weights": [], "parameters": 0}, set()),
        ({"weights": ["(4,) torch.float32 1a"], "parameters": 4}, {"parameters"}),
        ({"evaluation": samples(list(range(10_000, 10_032)))}, {"evaluation"}),
        ({"evaluation": samples([*range(10_000, 10_060), 0, 1, 2, 3])}, {"evaluation", "leak"}),
        ({"training": samples([*ROWS[:-4], *range(10_000, 10_004)])}, {"samples", "leak"}),
        ({"finished": True, "ends": [1.0, 2.0]}, {"steps"}),
    ],
)
def test_each_difference_is_a_fact(changes: dict[str, Any], names: set[str]) -> None:
    assert different(observed(**changes)) == names


def test_a_run_that_was_ended_has_no_number_of_steps() -> None:
    assert different(observed(ends=[1.0, 2.0])) == set()


def test_samples_that_depend_on_the_model_are_not_a_difference() -> None:
    late = samples([*ROWS[:80], *(-number - 1 for number in ROWS[80:])])
    assert different(observed(training=late)) == {"samples"}
    assert different(observed(training=late), parted=25) == {"samples"}
    assert different(observed(training=late), parted=5) == set(), "they part after losses have parted"


def test_weights_of_another_type_cannot_be_compared() -> None:
    other = observed(weights=["(4,) torch.bfloat16 1a", "(2, 4) torch.bfloat16 2b"])
    assert [fact.same for fact in facts_of(observed(), other, parted=None) if fact.name == "weights"] == [None]


def test_samples_that_differ_by_rounding_are_the_same() -> None:
    near = samples(ROWS)
    moved = Observed(training=type(near)(exact=[-number - 1 for number in ROWS], rounded=near.rounded, per_step=near.per_step))
    (fact,) = [fact for fact in facts_of(observed(), moved, parted=None) if fact.name == "samples"]
    assert fact.same


def test_a_run_that_differs_from_itself_is_named() -> None:
    assert repeats_of("AFTER", [[1.0, 2.0], [1.0, 2.0]]) is None
    fact = repeats_of("AFTER", [[1.0, 2.0], [1.0, 3.0]])
    assert fact is not None
    assert "step 2" in fact.text

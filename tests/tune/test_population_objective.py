"""PopulationObjective: rungs, scores, the same batches for all, and members that diverge."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.tune.twins import ResidualMlp, loss, make_batches, train_alone

from stoker.errors import OptionError
from stoker.tune import PopulationObjective

CONFIGS = [{"lr": 0.01}, {"lr": 1e30}, {"lr": 0.03}]


class Epochs:
    """Batches that know their epoch."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.batches = make_batches(3)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def make(**given: Any) -> PopulationObjective:
    train = given.pop("train_batches", make_batches(3))
    return PopulationObjective(
        lambda _: ResidualMlp(), loss, train, given.pop("valid", make_batches(2)), given.pop("rungs", (2, 5)), **given
    )


def test_members_train_to_each_rung_and_are_scored() -> None:
    objective = make(optimizer="sgd", verbose=False)
    assert objective.rungs == (2, 5)
    group = objective.start(CONFIGS, seeds=[7, 7, 7])
    first = group.advance(2)
    assert group.population.num_updates == 2
    assert math.isnan(first[1])
    group.keep([0, 2])
    last = group.advance(5)
    batches, valid = make_batches(3), make_batches(2)
    for score, config in zip(last, (CONFIGS[0], CONFIGS[2]), strict=True):
        _, model = train_alone(lambda _: ResidualMlp(), config, 7, [*batches, *batches][:5], optimizer="sgd")
        expected = sum(float(loss(model.eval(), batch, {}).detach()) for batch in valid) / 2
        assert abs(score - expected) < 1e-5
    assert group.advance(5) == last


def test_every_group_sees_the_same_batches_epoch_by_epoch() -> None:
    epochs = Epochs()
    objective = make(train_batches=epochs, rungs=(7,))
    scores = [objective.start([{"lr": 0.01}, {"lr": 0.02}], seeds=[1, 2]).advance(7) for _ in range(2)]
    assert epochs.epochs == [0, 1, 2, 0, 1, 2]
    assert scores[0] == scores[1]


def test_a_function_may_score() -> None:
    objective = make(valid=lambda population: [config["lr"] for config in population.configs])
    assert objective.start([{"lr": 0.01}, {"lr": 0.02}], seeds=[0, 1]).advance(2) == [0.01, 0.02]
    wrong = make(valid=lambda population: torch.zeros(1))
    with pytest.raises(OptionError, match="valid returned 1 scores for 2 members"):
        wrong.start([{"lr": 0.01}, {"lr": 0.02}], seeds=[0, 1]).advance(2)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rungs": ()}, "rungs is"),
        ({"rungs": (3, 3)}, "expected increasing numbers"),
        ({"rungs": (0, 3)}, "from 1"),
        ({"train_batches": iter([])}, "train_batches is a list_iterator, which can be iterated over only once"),
        ({"valid": (one for one in ())}, "valid is a generator"),
    ],
)
def test_invalid_arguments_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(**given)


def test_no_batches_are_an_error() -> None:
    group = make(train_batches=[]).start([{"lr": 0.1}], seeds=[0])
    with pytest.raises(OptionError, match="train_batches has no batch in epoch 0"):
        group.advance(2)

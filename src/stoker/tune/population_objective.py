"""PopulationObjective: what a search evaluates when its trials train together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stoker.errors import OptionError
from stoker.feed.protocol import as_batch_source
from stoker.tune.population import Population


class PopulationObjective:
    """Trains the configurations of a search as a population, and scores them after each rung.

    All members see the same batches in the same order, so that differences between scores come from their configurations.

    Args:
        make_model: As of `Population`.
        loss: As of `Population`.
        train_batches: Batches to train on: a `Feed`, a DataLoader, a list, or another iterable that can be iterated over again. Each
            group of members begins with the first batch of epoch 0.
        valid: Batches whose mean loss is the score, or a function of the population that returns one score per member.
        rungs: Increasing numbers of updates after which members are scored; the last is the full length.
        optimizer: As of `Population`.
        **options: Further arguments of `Population`.

    Raises:
        OptionError: `rungs` does not increase, or `train_batches` can be iterated over only once.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> batches = [(torch.randn(8, 4), torch.randn(8, 1)) for _ in range(3)]
        >>> def loss(model, batch):
        ...     return (model(batch[0]) - batch[1]).square().mean()
        >>> objective = PopulationObjective(lambda config: nn.Linear(4, 1), loss, batches, batches, rungs=(2, 8))
        >>> group = objective.start([{"lr": 0.1}, {"lr": 0.01}, {"lr": 1e-9}], seeds=[0, 0, 0])
        >>> scores = group.advance(2)
        >>> group.keep([0, 1])
        >>> len(scores), len(group.advance(8))
        (3, 2)
    """

    def __init__(
        self,
        make_model: Callable[[Mapping[str, Any]], nn.Module],
        loss: Callable[..., torch.Tensor],
        train_batches: Iterable[Any],
        valid: Iterable[Any] | Callable[[Population], Sequence[float] | torch.Tensor],
        rungs: Sequence[int],
        *,
        optimizer: str = "adamw",
        **options: Any,
    ) -> None:
        self.rungs = tuple(int(one) for one in rungs)
        if not self.rungs or self.rungs[0] < 1 or any(a >= b for a, b in zip(self.rungs, self.rungs[1:], strict=False)):
            raise OptionError(f"rungs is {tuple(rungs)!r}; expected increasing numbers of updates, from 1.")
        for name, batches in (("train_batches", train_batches), ("valid", valid)):
            if isinstance(batches, Iterator):
                raise OptionError(
                    f"{name} is a {type(batches).__name__}, which can be iterated over only once; pass a list or a Feed."
                )
        self._make_model = make_model
        self._loss = loss
        self._options = {"optimizer": optimizer, **options}
        self._train = train_batches
        self._valid = valid

    def start(self, configs: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> PopulationRun:
        """A population of new members, before its first update.

        Args:
            configs: One per member.
            seeds: One per member.
        """
        return PopulationRun(
            Population(self._make_model, self._loss, configs, seeds=seeds, **self._options), self._train, self._valid
        )


class PopulationRun:
    """The members of one `PopulationObjective.start`, at some update.

    Args:
        population: The members.
        train_batches: Iterated over epoch by epoch.
        valid: Batches, or a function of the population.
    """

    def __init__(self, population: Population, train_batches: Iterable[Any], valid: Any) -> None:
        self.population = population
        self._source = as_batch_source(train_batches)
        self._valid = valid
        self._batches = self._endless()

    def _endless(self) -> Iterator[Any]:
        epoch = 0
        while True:
            self._source.set_epoch(epoch)
            count = 0
            for batch in self._source:
                count += 1
                yield batch
            if not count:
                raise OptionError(
                    f"train_batches has no batch in epoch {epoch}; expected an iterable that can be iterated over again."
                )
            epoch += 1

    def advance(self, updates: int) -> list[float]:
        """Train all members up to a number of updates in total.

        Args:
            updates: The total; nothing is trained where it is reached already.

        Returns:
            A score per member; NaN where a member diverged.
        """
        while self.population.num_updates < updates:
            self.population.step(next(self._batches))
        scores: Any = self._valid(self.population) if callable(self._valid) else self.population.evaluate(self._valid)
        found = [float(one) for one in (scores.tolist() if isinstance(scores, torch.Tensor) else scores)]
        if len(found) != len(self.population):
            raise OptionError(f"valid returned {len(found):,} scores for {len(self.population):,} members; expected one each.")
        return [one if math.isfinite(one) else math.nan for one in found]

    def keep(self, indices: Sequence[int]) -> None:
        """Drop all other members.

        Args:
            indices: Positions of the members that stay.
        """
        self.population.keep(indices)

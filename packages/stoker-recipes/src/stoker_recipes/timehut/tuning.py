"""Search of hyperparameters: many configurations are trained as one population, and scored by a criterion that separates them.

The authors' criterion is accuracy on a few held-out series. On a small set it is constant: with 6 held-out series almost every
configuration gets all 6 right, and the search returns its first guess. Here the criterion is a margin: repeated stratified
cross-validation of a kernel classifier on the representations, in closed form and for all members at once, and the mean difference between
the output of the right class and the best other one. A criterion that is constant all the same is an error.

All members see the same crops and dropout (common random numbers), so differences between them are due to their configurations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.timehut.data import fit_scaler, for_training, read_series
from stoker_recipes.timehut.population import EncoderPopulation, make_population, targets_of
from stoker_recipes.timehut.settings import EncoderSettings, make_settings

_TEMP = {"min_tau": ("uniform", 0.08, 0.25), "max_tau": ("uniform", 0.65, 0.95), "t_max": ("uniform", 6.0, 15.0)}
_AMC = {"amc_instance": ("log", 0.1, 3.0), "amc_temporal": ("log", 0.1, 3.0), "amc_margin": ("uniform", 0.3, 0.7)}
SPACES: dict[str, dict[str, tuple[str, float, float]]] = {"temp": _TEMP, "amc": _AMC, "combined": {**_TEMP, **_AMC}}
"""Spaces of `stoker.tune.search` by scenario."""
MOST_SCORED = 1000
"""Series that the criterion uses at most; its matrices are (members, series, series)."""
FOLDS, REPEATS, RIDGE = 5, 4, 0.1


@dataclass(frozen=True, kw_only=True)
class SearchObjective:
    """The objective of a search on training series and their labels; larger scores are better.

    `stoker.tune.search` takes it as a group objective.

    Args:
        values: Training series (N, T, D), scaled.
        labels: Their classes, which the criterion uses and the training does not.
        settings: What all configurations have in common.
        rungs: Updates after which members are compared; the last is the whole run.
        crop_seed: Seed of the crops that all members share.
        device: Where it is computed.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> values = rng.normal(size=(16, 12, 1)).astype("f4") + np.arange(16)[:, None, None] % 2
        >>> small = make_settings("timehut", updates=4, hidden=4, depth=2, width=8)
        >>> objective = SearchObjective(values=values, labels=np.arange(16) % 2, settings=small, rungs=(2, 4))
        >>> group = objective.start([{"max_tau": 0.7}, {"max_tau": 0.9}], seeds=[1, 2])
        >>> len(group.advance(2))
        2
    """

    values: Array
    labels: Array
    settings: EncoderSettings
    rungs: Sequence[int] = (10, 40, 160)
    crop_seed: int = 2002
    device: str = "cpu"

    def __post_init__(self) -> None:
        if list(self.rungs) != sorted(set(self.rungs)) or not self.rungs or self.rungs[0] < 1:
            raise OptionError.expected("rungs", tuple(self.rungs), "increasing numbers of updates")
        _, counts = np.unique(self.labels, return_counts=True)
        if len(counts) < 2 or counts.min() < 2:
            raise OptionError(
                "a search needs at least two classes of two labelled series each; train with the defaults instead.",
                parameter="data",
            )

    def start(self, configs: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> TrainingGroup:
        """A group with one member per configuration and seed.

        Raises:
            OptionError: A configuration has an unknown name or an invalid value.
        """
        unknown = sorted({name for config in configs for name in config} - set(SPACES["combined"]))
        if unknown:
            raise OptionError(
                f"a configuration has {unknown[0]!r}; expected some of {', '.join(SPACES['combined'])}.", parameter=unknown[0]
            )
        base = replace(self.settings, updates=max(self.rungs), epochs=None)
        members = [replace(base, **config, seed=int(seed)) for config, seed in zip(configs, seeds, strict=True)]
        trained = for_training(self.values, max_length=base.max_train_length)
        population = make_population(
            trained,
            members,
            crop_seeds=[self.crop_seed] * len(members),
            targets=[targets_of(trained, base)] * len(members),
            device=self.device,
        )
        return TrainingGroup(population, self)


class TrainingGroup:
    """Members of a search in training."""

    def __init__(self, population: EncoderPopulation, objective: SearchObjective) -> None:
        self.population, self._objective = population, objective

    def advance(self, updates: int) -> list[float]:
        """Train up to `updates` updates in total; one score per member, NaN for a failed one."""
        losses = self.population.advance(updates)
        representations = torch.from_numpy(self.population.encode(self._objective.values))
        score = margins(representations, self._objective.labels)
        return torch.where(
            torch.isfinite(losses.cpu()) & torch.isfinite(representations).all(-1).all(-1), score, float("nan")
        ).tolist()

    def keep(self, indices: Sequence[int]) -> None:
        """Continue with these members only."""
        self.population.keep(indices)


def margins(embeddings: Tensor, labels: Array, *, seed: int = 0) -> Tensor:
    """The criterion for each member: the mean margin of kernel ridge classification in repeated stratified cross-validation.

    The kernel is the papers' (RBF, gamma "scale"). For a fold S, outputs without S follow from those with it,
    y_S - (I - H_SS)^-1 (y_S - H y_S), where H = K (K + ridge I)^-1: so one factorisation serves all folds.

    Args:
        embeddings: (K, N, width).
        labels: (N,).
        seed: Of the folds.

    Returns:
        (K,), float64, from about -1 to 1.
    """
    chosen = _some(labels, seed)
    x, labels = embeddings[:, chosen].double(), labels[chosen]
    classes, codes = np.unique(labels, return_inverse=True)
    y = torch.nn.functional.one_hot(torch.from_numpy(codes), len(classes)).double().to(x.device) * 2 - 1
    squares = torch.cdist(x, x).square()
    variance = x.var(dim=(1, 2), correction=0).clamp(min=1e-12)
    kernel = torch.exp(-squares / (x.shape[2] * variance)[:, None, None])
    identity = torch.eye(len(labels), dtype=x.dtype, device=x.device)
    hat = torch.linalg.solve(kernel + RIDGE * identity, kernel)
    fitted = hat @ y
    total = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    for repeat in range(REPEATS):
        for fold in _folds(codes, np.random.default_rng((seed, repeat))):
            inside = torch.from_numpy(fold).to(x.device)
            block = identity[: len(fold), : len(fold)] - hat[:, inside[:, None], inside]
            outputs = y[inside] - torch.linalg.solve(block, y[inside] - fitted[:, inside])
            right = y[inside] > 0
            true = outputs.masked_fill(~right, -math.inf).amax(-1)
            other = outputs.masked_fill(right, -math.inf).amax(-1)
            total += ((true - other) / 2).sum(-1)
    return (total / (REPEATS * len(labels))).cpu()


def _some(labels: Array, seed: int) -> Array:
    """Numbers of at most `MOST_SCORED` series, with the same share of each class."""
    if len(labels) <= MOST_SCORED:
        return np.arange(len(labels))
    order = np.random.default_rng(seed).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    return np.sort(order[np.linspace(0, len(labels) - 1, MOST_SCORED).astype(int)])


def _folds(codes: Array, rng: np.random.Generator) -> list[Array]:
    """Stratified folds: the series of each class are dealt out in random order."""
    order = rng.permutation(len(codes))
    order = order[np.argsort(codes[order], kind="stable")]
    number = min(FOLDS, len(codes))
    return [np.sort(order[i::number]) for i in range(number)]


def objective_of(data: str | Path, *, epochs: int | None = None, device: str | None = None) -> SearchObjective:
    """The objective of TimeHUT on a file of labelled series, scaled as in training.

    Args:
        data: A `.tsv`, `.ts` or `.arff` file, or a store.
        epochs: Length of a full trial; by default 160 updates. Trials are compared after a sixteenth, a quarter and all of it.
        device: Where it is computed; by default a GPU if there is one.

    Raises:
        OptionError: The series have no labels.
    """
    series = read_series(data)
    if series.labels is None:
        raise OptionError(f"{data} has no labels, which the score of a search needs; train with the defaults instead.", path=data)
    scaler = fit_scaler(series.values)
    settings = make_settings("timehut")
    per_epoch = max(1, len(series.values) // min(settings.batch_size, len(series.values)))
    updates = epochs * per_epoch if epochs is not None else 160
    return SearchObjective(
        values=series.values if scaler is None else scaler(series.values),
        labels=series.labels,
        settings=settings,
        rungs=sorted({max(1, updates // 16), max(1, updates // 4), updates}),
        device=device or ("cuda" if torch.cuda.is_available() else "cpu"),
    )

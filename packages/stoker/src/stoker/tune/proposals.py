"""Which configurations to try next: Optuna's TPE, so seeded that processes and continued searches do not propose the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial


class SeededTpe(optuna.samplers.BaseSampler):
    """Optuna's TPE with random numbers that follow from a seed and the number of the trial."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._tpe = optuna.samplers.TPESampler(seed=seed)

    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        """Begin the random numbers of a trial."""
        seed = int(np.random.default_rng([self._seed, trial.number]).integers(2**31))
        self._tpe = optuna.samplers.TPESampler(seed=seed, constant_liar=True)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters that are drawn together."""
        return self._tpe.infer_relative_search_space(study, trial)

    def sample_relative(self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> dict[str, Any]:
        """Draw them."""
        return self._tpe.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw another parameter."""
        return self._tpe.sample_independent(study, trial, param_name, param_distribution)

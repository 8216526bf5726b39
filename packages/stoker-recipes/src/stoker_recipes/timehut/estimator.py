"""`Encoder`: the encoder as an estimator of scikit-learn. Needs the extra `timehut` (scikit-learn)."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from stoker.errors import OptionError
from stoker.extend import Array, check_device
from stoker_recipes.timehut.data import as_series, fit_scaler, for_training
from stoker_recipes.timehut.predicting import TrainedEncoder
from stoker_recipes.timehut.settings import make_settings
from stoker_recipes.timehut.training import new_population


class Encoder(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Representations of time series, learned without labels: `Encoder().fit(X).transform(X)` is (series, width).

    X is (series, steps), (series, channels, steps) as aeon has it, or a list of arrays (channels, steps) of different lengths. NaN is
    missing. The parameters are those of `EncoderSettings`; None is the default of the method.

    Args:
        method: "timehut", "ts2vec" or "softclt".
        epochs: Passes over the series. None: `updates`.
        updates: Updates of the weights. 0: 200 for at most 100,000 values, else 600.
        batch_size: Series per update.
        lr: Learning rate.
        hidden: Channels inside the encoder.
        depth: Blocks before the last one.
        width: Values of a representation.
        min_tau: Smallest temperature.
        max_tau: Largest temperature.
        t_max: Period of the temperature, in epochs.
        amc_instance: Weight of the angular margin between series.
        amc_temporal: Weight of the angular margin between steps.
        amc_margin: The margin, in radians.
        normalize: "auto", "global" or "none"; see `fit_scaler`.
        device: Default: a GPU if there is one.
        random_state: Seed: an integer, or a RandomState of NumPy. None: 2002.

    Example:
        >>> X = np.sin(np.arange(40) * np.array([[0.2], [0.3], [0.5], [0.7]]))
        >>> Encoder(updates=2, hidden=4, depth=2, width=8).fit_transform(X).shape
        (4, 8)
    """

    def __init__(
        self,
        method: str = "timehut",
        *,
        epochs: int | None = None,
        updates: int = 0,
        batch_size: int = 8,
        lr: float = 1e-3,
        hidden: int = 64,
        depth: int = 10,
        width: int = 320,
        min_tau: float | None = None,
        max_tau: float | None = None,
        t_max: float | None = None,
        amc_instance: float | None = None,
        amc_temporal: float | None = None,
        amc_margin: float | None = None,
        normalize: str = "auto",
        device: str | None = None,
        random_state: Any = None,
    ) -> None:
        self.method = method
        self.epochs = epochs
        self.updates = updates
        self.batch_size = batch_size
        self.lr = lr
        self.hidden = hidden
        self.depth = depth
        self.width = width
        self.min_tau = min_tau
        self.max_tau = max_tau
        self.t_max = t_max
        self.amc_instance = amc_instance
        self.amc_temporal = amc_temporal
        self.amc_margin = amc_margin
        self.normalize = normalize
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Train on the series; `y` is not used."""
        values = self._checked(X, reset=True)
        options = {name: getattr(self, name) for name in self.get_params() if name not in ("normalize", "device", "random_state")}
        settings = make_settings(**options, seed=_seed(self.random_state))
        where = check_device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        scaler = fit_scaler(values, normalize=self.normalize)
        scaled = values if scaler is None else scaler(values)
        population = new_population(for_training(scaled, max_length=settings.max_train_length), settings, device=where)
        self.loss_ = float(population.advance(population.num_updates)[0])
        self.n_updates_ = population.updates
        self.encoder_ = TrainedEncoder(
            row=population.average_whole()[0],
            channels=values.shape[2],
            settings=settings,
            scaler=scaler,
            length=values.shape[1],
            updates=population.updates,
        )
        self._n_features_out = settings.width
        return self

    def transform(self, X: Any) -> Array:
        """Representations, (series, width)."""
        check_is_fitted(self)
        return self.encoder_(self._checked(X, reset=False))

    def _checked(self, X: Any, *, reset: bool) -> Array:
        """The series as (N, T, D), checked as scikit-learn does where they are one array."""
        if isinstance(X, list | tuple) and X and np.ndim(X[0]) > 0 and len({np.shape(row) for row in X}) > 1:
            values = as_series(X)
            if reset:
                self.n_features_in_ = values.shape[2]
            return values
        checked = validate_data(
            self, X, reset=reset, dtype=np.float64, allow_nd=True, ensure_all_finite="allow-nan", skip_check_array=False,
            ensure_min_features=2 if reset else 1,
        )  # fmt: skip
        if checked.ndim > 3:
            raise OptionError(
                f"X has the shape {checked.shape}; expected (series, steps) or (series, channels, steps).", parameter="X"
            )
        return as_series(checked)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.three_d_array = True
        tags.transformer_tags.preserves_dtype = ["float32"]
        return tags


def _seed(random_state: Any) -> int:
    if random_state is None:
        return 2002
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(random_state.randint(2**31))

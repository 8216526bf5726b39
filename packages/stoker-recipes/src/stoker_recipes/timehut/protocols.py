"""TS2Vec's other protocols: forecasts and anomalies from representations.

A forecast is a ridge regression from the representation of a step to the values of the next steps. The representation of step t is that
of the last step of a window of `padding` + 1 steps that ends there, so it knows nothing of the future. Steps are split in time, 60 % for
training, 20 % for the choice of the ridge penalty, 20 % for the score.

A step is unusual if its representation changes much when the step itself is masked:

    score       sum over dimensions of |representation - representation with the step masked|
    adjusted    (score - mean of the 21 scores before) / that mean
    threshold   mean + 4 deviations of the adjusted scores of the training steps
    alarms      steps above the threshold; one that follows another within `delay` steps is dropped

An anomaly of several steps counts as found, all of it, if an alarm comes within `delay` steps of its start; else all of it is missed.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.timehut.model import encode, kept_positions, make_layout
from stoker_recipes.timehut.predicting import TrainedEncoder

PENALTIES = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
PADDING = 200
SPLITS = (0.6, 0.8)
MOST_SAMPLES = 100_000
WINDOW_VALUES = 1 << 24
"""Activations of one part of `step_representations`, so that its memory does not grow with the data."""


@dataclass(frozen=True, kw_only=True)
class ForecastScore:
    """How well the next `horizon` steps are predicted, in units of the scaled series."""

    horizon: int
    penalty: float
    """The ridge penalty that was best on the validation steps."""
    mse: float
    mae: float


def step_representations(encoder: TrainedEncoder, values: Array, *, padding: int = PADDING, mask_last: bool = False) -> Array:
    """Representations of every step from the steps before it, (N, T, width).

    Args:
        encoder: A trained encoder.
        values: Series (N, T, D), not scaled; NaN is missing.
        padding: Steps before a step that its representation knows.
        mask_last: Mask the step itself: what the steps before it lead one to expect.

    Example:
        >>> from stoker_recipes.timehut import Encoder
        >>> waves = np.sin(np.arange(30) * np.array([[0.2], [0.5]]))
        >>> encoder = Encoder(updates=1, hidden=4, depth=2, width=8).fit(waves).encoder_
        >>> step_representations(encoder, waves[:, :, None], padding=5).shape
        (2, 30, 8)
    """
    if values.ndim != 3 or values.shape[2] != encoder.channels:
        raise OptionError(f"values has the shape {values.shape}; expected (series, steps, {encoder.channels} channels).")
    if padding < 1:
        raise OptionError(f"padding is {padding}; expected an integer from 1.")
    scaled = np.asarray(values if encoder.scaler is None else encoder.scaler(values), np.float32)
    before = np.full((len(scaled), padding, scaled.shape[2]), np.nan, np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(np.concatenate([before, scaled], 1), padding + 1, axis=1)
    windows = windows.reshape(-1, scaled.shape[2], padding + 1)  # (N x T, D, padding + 1)
    layout = make_layout(encoder.settings.size(encoder.channels), padding + 1)
    row = encoder.row[kept_positions(layout)][None]
    part = max(1, WINDOW_VALUES // ((padding + 1) * max(3 * layout.size.hidden, 2 * layout.size.width)))
    found = []
    with torch.no_grad():
        for begin in range(0, len(windows), part):
            x = torch.from_numpy(np.ascontiguousarray(windows[begin : begin + part].transpose(0, 2, 1)))
            given = ~torch.isnan(x).any(-1)
            if mask_last:
                given[:, -1] = False
            found.append(encode(row, layout, x.nan_to_num(0.0)[None], given[None])[0, :, -1])
    result: Array = torch.cat(found).reshape(*scaled.shape[:2], -1).numpy()
    return result


def score_forecasts(
    encoder: TrainedEncoder, values: Array, *, horizons: Sequence[int], padding: int = PADDING
) -> list[ForecastScore]:
    """The papers' forecasting scores on series that the encoder has seen up to 60 % of their steps.

    Args:
        encoder: An encoder trained on the first 60 % of the steps.
        values: Series (N, T, D) without NaN.
        horizons: Numbers of steps to predict.
        padding: Steps before a step that its representation knows.

    Raises:
        OptionError: The series are too short for a horizon.
    """
    found = step_representations(encoder, values, padding=padding)
    scaled = np.asarray(values if encoder.scaler is None else encoder.scaler(values), np.float64)
    ends = [0, *(int(share * values.shape[1]) for share in SPLITS), values.shape[1]]
    scores = []
    for horizon in horizons:
        least = min(b - a for a, b in itertools.pairwise(ends))
        if not 1 <= horizon < least - padding * (least == ends[1]):
            raise OptionError(f"horizons has {horizon}, but the shortest part of the series has {least} steps; expected fewer.")
        parts = [_samples(found[:, a:b], scaled[:, a:b], horizon, skip=padding if a == 0 else 0)
                 for a, b in itertools.pairwise(ends)]  # fmt: skip
        fits = ridge_fits(*parts[0])
        errors = [parts[1][1] - _predict(parts[1][0], one) for one in fits]
        best = int(np.argmin([np.sqrt(np.square(one).mean()) + np.abs(one).mean() for one in errors]))
        error = parts[2][1] - _predict(parts[2][0], fits[best])
        scores.append(ForecastScore(horizon=horizon, penalty=PENALTIES[best], mse=float(np.square(error).mean()),
                                    mae=float(np.abs(error).mean())))  # fmt: skip
    return scores


def ridge_fits(features: Array, wanted: Array, *, seed: int = 0) -> list[tuple[Array, Array]]:
    """Coefficients and intercept of a ridge regression for each of `PENALTIES`; one factorisation serves all of them."""
    if len(features) > MOST_SAMPLES:
        chosen = np.random.default_rng(seed).choice(len(features), MOST_SAMPLES, replace=False)
        features, wanted = features[chosen], wanted[chosen]
    center, level = features.mean(0), wanted.mean(0)
    x, y = features - center, wanted - level
    values, vectors = np.linalg.eigh(x.T @ x)
    inner = vectors.T @ (x.T @ y)
    fits = []
    for penalty in PENALTIES:
        coefficients = vectors @ (inner / (np.maximum(values, 0) + penalty)[:, None])
        fits.append((coefficients, level - center @ coefficients))
    return fits


def _predict(features: Array, fit: tuple[Array, Array]) -> Array:
    predicted: Array = features @ fit[0] + fit[1]
    return predicted


def _samples(found: Array, values: Array, horizon: int, *, skip: int) -> tuple[Array, Array]:
    """Representations of steps with the values of the next `horizon` steps; the first `skip` steps have no whole window."""
    ahead = np.lib.stride_tricks.sliding_window_view(values[:, 1:], horizon, axis=1)  # (N, T - horizon, D, horizon)
    features = found[:, : ahead.shape[1]][:, skip:].astype(np.float64)
    return features.reshape(-1, found.shape[2]), ahead[:, skip:].reshape(-1, values.shape[2] * horizon)


AVERAGED, DEVIATIONS = 21, 4.0


@dataclass(frozen=True, kw_only=True)
class DetectionScore:
    """How well anomalies are found, over all steps."""

    precision: float
    recall: float
    f1: float


def anomaly_scores(encoder: TrainedEncoder, values: Array, *, padding: int = PADDING) -> Array:
    """How unusual each step is given the steps before it, (N, T).

    Args:
        encoder: A trained encoder.
        values: Series (N, T, D), not scaled.
        padding: Steps before a step that its representation knows.
    """
    usual, masked = (step_representations(encoder, values, padding=padding, mask_last=one) for one in (False, True))
    scores: Array = np.abs(usual - masked).sum(-1)
    return scores


def alarms(scores: Array, *, num_train: int, delay: int = 7) -> Array:
    """Which steps after the first `num_train` are reported as anomalies.

    Args:
        scores: Of one series, (T,).
        num_train: Steps at its beginning that set the threshold.
        delay: Steps after an alarm in which there is no other.

    Returns:
        bool, (T - num_train,).

    Example:
        >>> scores = np.ones(60)
        >>> scores[::2], scores[50] = 1.1, 9.0
        >>> np.flatnonzero(alarms(scores, num_train=40)).tolist()
        [10]
    """
    if not AVERAGED + 2 < num_train < len(scores):
        raise OptionError(
            f"num_train is {num_train}; expected {AVERAGED + 3} to {len(scores) - 1}, as there are {len(scores)} scores."
        )
    before = np.lib.stride_tricks.sliding_window_view(scores, AVERAGED).mean(-1)[:-1]  # of steps 21, 22, ..
    adjusted = scores[AVERAGED:] / before - 1
    known = adjusted[1 : num_train - AVERAGED]
    is_above = adjusted[num_train - AVERAGED :] > known.mean() + DEVIATIONS * known.std()
    reported: Array = np.zeros(len(is_above), bool)
    for step in np.flatnonzero(is_above):
        reported[step] = not reported[max(0, step - delay) : step].any() if step >= delay else True
    return reported


def score_alarms(reported: Array, is_anomaly: Array, *, delay: int = 7) -> DetectionScore:
    """Precision, recall and F1 of alarms, by the rule for anomalies of several steps.

    Args:
        reported: Alarms, (T,).
        is_anomaly: The truth, (T,).
        delay: Steps after the beginning of an anomaly in which an alarm finds it.

    Example:
        >>> truth = np.array([0, 1, 1, 1, 0, 0, 1, 1], bool)
        >>> found = score_alarms(np.array([0, 0, 1, 0, 0, 0, 0, 0], bool), truth, delay=1)
        >>> found.precision, found.recall
        (1.0, 0.6)
    """
    truth, adjusted = np.asarray(is_anomaly, bool), np.array(reported, bool)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], truth, [False]]).astype(np.int8)))
    for begin, end in edges.reshape(-1, 2):
        adjusted[begin:end] = np.asarray(reported)[begin : min(begin + delay + 1, end)].any()
    hits = int((adjusted & truth).sum())
    precision, recall = hits / max(1, int(adjusted.sum())), hits / max(1, int(truth.sum()))
    return DetectionScore(precision=precision, recall=recall, f1=2 * precision * recall / max(precision + recall, 1e-300))

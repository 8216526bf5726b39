"""TS2Vec's anomaly detection: a step is unusual if its representation changes much when the step itself is masked.

    score       sum over dimensions of |representation - representation with the step masked|
    adjusted    (score - mean of the 21 scores before) / that mean
    threshold   mean + 4 deviations of the adjusted scores of the training steps
    alarms      steps above the threshold; one that follows another within `delay` steps is dropped

An anomaly of several steps counts as found, all of it, if an alarm comes within `delay` steps of its beginning; else all of it is missed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stoker.errors import OptionError
from stoker.extend import Array
from stoker_recipes.timehut.forecast import PADDING, step_representations
from stoker_recipes.timehut.training import TrainedEncoder

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

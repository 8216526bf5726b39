"""TS2Vec's anomaly detection: scores, alarms and their score are those of loops over steps."""

from __future__ import annotations

import numpy as np
import pytest

from stoker_recipes.timehut.protocols import alarms, score_alarms


def slow_alarms(scores: np.ndarray, num_train: int, delay: int) -> list[bool]:
    adjusted = [float("nan")] * len(scores)
    for t in range(21, len(scores)):
        mean = sum(scores[t - 21 : t]) / 21
        adjusted[t] = (scores[t] - mean) / mean
    known = np.array(adjusted[22:num_train])
    threshold = known.mean() + 4 * known.std()
    found = [one > threshold for one in adjusted[num_train:]]
    for i in range(len(found)):
        if i >= delay and any(found[i - delay : i]):
            found[i] = False
    return found


@pytest.mark.promise("P29")
@pytest.mark.parametrize("delay", [0, 3, 7])
def test_alarms_are_those_of_a_loop(delay: int) -> None:
    rng = np.random.default_rng(delay)
    for _ in range(20):
        scores = rng.uniform(1, 1.2, 120)
        scores[rng.choice(np.arange(60, 120), 12, replace=False)] += 6
        found = alarms(scores, num_train=60, delay=delay)
        assert found.tolist() == slow_alarms(scores, 60, delay)
        assert found.any()


@pytest.mark.promise("P29")
def test_a_segment_counts_as_a_whole() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        truth, reported, delay = rng.random(40) < 0.5, rng.random(40) < 0.2, int(rng.integers(0, 4))
        adjusted, begin = reported.copy(), 0
        while begin < 40:
            end = begin
            while end < 40 and truth[end] == truth[begin]:
                end += 1
            if truth[begin]:
                adjusted[begin:end] = reported[begin : min(begin + delay + 1, end)].any()
            begin = end
        hits = (adjusted & truth).sum()
        precision, recall = hits / max(1, adjusted.sum()), hits / max(1, truth.sum())
        found = score_alarms(reported, truth, delay=delay)
        assert found.precision == pytest.approx(precision)
        assert found.recall == pytest.approx(recall)
        assert found.f1 == pytest.approx(2 * precision * recall / (precision + recall) if hits else 0)

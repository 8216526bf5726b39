"""Early stopping: what is better, when it is enough, and that it goes on after a checkpoint."""

from __future__ import annotations

import json
import math

import pytest

from stoker import EarlyStopping
from stoker.errors import CheckpointInvalidError
from stoker.train.early_stopping import Verdict, guess_mode


def verdicts(stopping: EarlyStopping, values: list[float]) -> list[tuple[bool, bool]]:
    found = [stopping.update(value, epoch) for epoch, value in enumerate(values)]
    return [(verdict.improved, verdict.stop) for verdict in found]


def test_a_run_stops_after_patience_evaluations_in_a_row_without_progress() -> None:
    stopping = EarlyStopping("val_loss", patience=2)
    assert verdicts(stopping, [3, 2, 2, 1, 1, 1.5]) == [
        (True, False),
        (True, False),
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]
    assert (stopping.best, stopping.best_epoch) == (1.0, 3)


def test_progress_is_more_than_min_delta_over_the_best() -> None:
    assert verdicts(EarlyStopping("val_auc", patience=9, min_delta=0.5), [1, 1.5, 1.6, 2.0]) == [
        (True, False),
        (False, False),
        (True, False),
        (False, False),
    ]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_a_value_that_is_not_finite_is_never_better(value: float, mode: str) -> None:
    stopping = EarlyStopping("x", mode=mode, patience=2)  # type: ignore[arg-type]
    assert stopping.update(value, 0) == Verdict(improved=False, stop=False)
    assert stopping.update(1.0, 1).improved
    assert not stopping.update(value, 2).improved
    assert stopping.update(value, 3).stop


@pytest.mark.parametrize(
    ("metric", "mode"),
    [
        ("val_loss", "min"),
        ("val_auc", "max"),
        ("accuracy", "max"),
        ("valid/MAE", "min"),
        ("quantile_loss_0.9", "min"),
        ("width", None),
        ("auc_loss", None),
        ("glossary", None),
    ],
)
def test_the_mode_is_guessed_from_whole_words_only(metric: str, mode: str | None) -> None:
    assert guess_mode(metric) == mode


def test_continues_from_its_state_as_if_nothing_had_happened() -> None:
    values = [3.0, 2.0, 2.5, math.nan, 1.9, 2.0, 2.0, 2.0]
    whole = EarlyStopping("loss", patience=3)
    expected = verdicts(whole, values)
    for cut in range(len(values)):
        first, second = EarlyStopping("loss", patience=3), EarlyStopping("loss", patience=3)
        found = verdicts(first, values[:cut])
        second.load_state_dict(json.loads(json.dumps(first.state_dict(), allow_nan=False)))
        assert found + verdicts(second, values[cut:]) == expected


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(CheckpointInvalidError, match=r"'val_auc' \(max\), this one about 'val_loss' \(min\)"):
        EarlyStopping("val_loss").load_state_dict(EarlyStopping("val_auc").state_dict())
    with pytest.raises(CheckpointInvalidError, match="cannot be read"):
        EarlyStopping("val_loss").load_state_dict({"metric": "val_loss", "mode": "min", "best": "low"})

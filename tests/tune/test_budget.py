from __future__ import annotations

from typing import Any

import optuna
import pytest

from stoker.errors import OptionError
from stoker.tune import budget
from stoker.tune.budget import SearchBudget, parse_budget


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("60s", (60.0, None)),
        ("1.5h", (5400.0, None)),
        ("10min", (600.0, None)),
        (200, (None, 200)),
        ("200", (None, 200)),
        (2.5, (2.5, None)),
    ],
)
def test_a_budget_is_seconds_or_trials(text: Any, found: Any) -> None:
    assert parse_budget(text) == found


@pytest.mark.parametrize("text", ["", "0s", 0, -1, "1.5", "ten", True, float("nan"), [], "5 parsecs"])
def test_an_impossible_budget_is_an_error(text: Any) -> None:
    with pytest.raises(OptionError, match=r"budget is .*expected seconds above 0 such as '60s'"):
        parse_budget(text)


def test_a_search_ends_after_its_seconds_once_there_is_a_result_and_after_twice_of_them_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0]
    monkeypatch.setattr(budget, "now_ns", lambda: now[0])
    study, limits = optuna.create_study(), SearchBudget(10.0, None, used=4.0, began_ns=0)
    now[0] = int(5.9e9)
    assert not limits.is_over()
    now[0] = int(6.1e9)
    assert limits.is_over()
    assert not limits.has_to_end(study)
    now[0] = int(20.1e9)
    assert limits.has_to_end(study)
    now[0] = int(6.1e9)
    study.optimize(lambda trial: 1.0, n_trials=1)
    assert limits.has_to_end(study)
    assert not SearchBudget(None, 5, began_ns=0).has_to_end(study)

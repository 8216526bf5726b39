"""Settings: defaults of methods, and errors that name the setting."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.errors import OptionError
from stoker.recipes.timehut.settings import make_settings


def test_methods_have_their_own_defaults() -> None:
    assert make_settings("timehut").amc_instance == 0.5
    assert make_settings("ts2vec").amc_instance == 0
    assert make_settings("softclt", tau_temporal=None).tau_temporal == 2.5
    assert make_settings("softclt", tau_temporal=0.0).tau_temporal == 0


def test_updates_follow_the_rule_of_ts2vec() -> None:
    assert make_settings().num_updates(100_000, 2) == 200
    assert make_settings().num_updates(100_001, 2) == 600
    assert make_settings(epochs=200).num_updates(480, 2) == 400
    assert make_settings(updates=7).num_updates(480, 2) == 7


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"method": "clt"}, "method is 'clt'; expected one of timehut, ts2vec, softclt."),
        ({"lr": float("nan")}, "lr is nan; expected a number from 0."),
        ({"batch_size": 0}, "batch_size is 0; expected an integer from 1."),
        ({"dropout": 1.0}, "dropout is 1.0; expected a number from 0 to below 1."),
        ({"seed": -1}, "seed is -1; expected an integer from 0."),
        ({"epochs": 0}, "epochs is 0; expected an integer from 1."),
        ({"learning_rate": 1}, "'learning_rate' is not a setting; expected some of method, epochs,"),
    ],
)
def test_errors_name_the_setting(given: dict[str, Any], text: str) -> None:
    with pytest.raises(OptionError) as error:
        make_settings(**given)
    assert str(error.value).startswith(text)

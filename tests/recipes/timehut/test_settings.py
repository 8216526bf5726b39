"""Settings: defaults of methods, and errors that name the setting."""

from __future__ import annotations

import math

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


def test_errors_name_the_setting() -> None:
    for name, value in (("method", "clt"), ("lr", math.nan), ("batch_size", 0), ("dropout", 1.0), ("seed", -1), ("epochs", 0)):
        with pytest.raises(OptionError, match=f"^{name} is {value!r}; expected "):
            make_settings(**{name: value})
    with pytest.raises(OptionError, match="'learning_rate' is not a setting"):
        make_settings(learning_rate=1)

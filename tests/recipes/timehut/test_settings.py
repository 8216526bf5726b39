"""Settings: defaults of methods, temperatures, and errors that name the setting."""

from __future__ import annotations

import math

import pytest

from stoker.errors import OptionError
from stoker_recipes.timehut.settings import make_settings, temperatures


def test_methods_have_their_own_defaults() -> None:
    assert make_settings("timehut").amc_instance == 0.5
    assert make_settings("ts2vec").amc_instance == 0
    assert make_settings("softclt", tau_temporal=None).tau_temporal == 2.5
    assert make_settings("softclt", tau_temporal=0.0).tau_temporal == 0


def test_errors_name_the_setting() -> None:
    for name, value in (("method", "clt"), ("lr", math.nan), ("batch_size", 0), ("dropout", 1.0), ("seed", -1), ("epochs", 0)):
        with pytest.raises(OptionError, match=f"^{name} is {value!r}; expected "):
            make_settings(**{name: value})
    with pytest.raises(OptionError, match="'learning_rate' is not a setting"):
        make_settings(learning_rate=1)


def test_a_temperature_of_zero_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"goes from 0 to 1 with period 5; expected 0 < low <= high"):
        temperatures("cosine", 5, low=0, high=1, period=5)
    with pytest.raises(OptionError, match=r"schedule is 'cosin'; expected one of cosine, linear"):
        temperatures("cosin", 5, low=0.1, high=1)

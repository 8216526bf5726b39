from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest

from stoker.errors import OptionError
from stoker.tune.space import as_space

FORMS = {
    "lr": ("log", 1e-5, 1e-1),
    "dropout": ["uniform", 0, 0.5],
    "quarter": ("uniform", 0.0, 1.0, 0.25),
    "layers": ("int", 1, 6),
    "width": ("int_log", 8, 512),
    "name": ["gru", "mlp", None],
    "own": optuna.distributions.FloatDistribution(2.0, 4.0),
}


def test_points_become_values_within_their_limits_and_back(rng: np.random.Generator) -> None:
    space = as_space(FORMS)
    for point in [*rng.random((200, len(FORMS))), np.zeros(len(FORMS)), np.ones(len(FORMS))]:
        params = space.to_params(point)
        assert all(space.distributions[name]._contains(space.distributions[name].to_internal_repr(params[name])) for name in params)
        again = space.to_params(space.to_point(params))
        assert again == pytest.approx(params) if all(isinstance(one, float) for one in params.values()) else True
        for name, value in params.items():
            assert again[name] == (pytest.approx(value) if isinstance(value, float) else value)
        assert isinstance(params["layers"], int)
        assert isinstance(params["width"], int)


def test_each_value_of_steps_and_choices_has_an_equal_share() -> None:
    space = as_space({"layers": ("int", 1, 4), "name": ["a", "b"]})
    found = [space.to_params([x, x]) for x in (np.arange(1000) + 0.5) / 1000]
    assert [sum(one["layers"] == value for one in found) for value in (1, 2, 3, 4)] == [250] * 4
    assert sum(one["name"] == "a" for one in found) == 500


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "space is empty"),
        ([1], "space is [1]; expected a dict"),
        ({"lr": 0.1}, "space['lr'] is 0.1; expected a distribution of Optuna"),
        ({"lr": ("log", 0, 1)}, "a logarithm needs a low end above 0, found 0"),
        ({"lr": ("log", 1, 10, 2)}, "a logarithm has no step"),
        ({"lr": ("uniform", 1, 1)}, "its low end 1 is not below its high end 1"),
        ({"lr": ("uniform", 1)}, "expected ('uniform', low, high)"),
        ({"lr": ("uniform", 0, float("nan"))}, "with finite numbers"),
        ({"n": ("int", 0.5, 3)}, "expected integers"),
        ({"n": [[1], [2]]}, "the values to choose from may be strings"),
    ],
)
def test_an_invalid_space_is_an_error_that_names_the_parameter(space: Any, words: str) -> None:
    with pytest.raises(OptionError) as error:
        as_space(space)
    assert words in str(error.value)

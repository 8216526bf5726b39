from __future__ import annotations

from typing import Any

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from stoker.errors import OptionError
from stoker.tune.space import as_space

FORMS = {
    "lr": ("log", 1e-5, 1e-1),
    "dropout": ["uniform", 0, 0.5],
    "quarter": ("uniform", 0.0, 1.0, 0.25),
    "layers": ("int", 1, 6),
    "width": ("int_log", 8, 512),
    "name": ["gru", "mlp", None],
    "own": FloatDistribution(2.0, 4.0),
}


def test_short_forms_are_distributions_of_optuna() -> None:
    assert as_space(FORMS) == {
        "lr": FloatDistribution(1e-5, 1e-1, log=True),
        "dropout": FloatDistribution(0.0, 0.5),
        "quarter": FloatDistribution(0.0, 1.0, step=0.25),
        "layers": IntDistribution(1, 6),
        "width": IntDistribution(8, 512, log=True),
        "name": CategoricalDistribution(["gru", "mlp", None]),
        "own": FloatDistribution(2.0, 4.0),
    }


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({}, "space is empty"),
        ([1], "space is [1]; expected a dict"),
        ({"lr": 0.1}, "space['lr'] is 0.1; expected a distribution of Optuna"),
        ({"lr": ("log", 0, 1)}, "expected a low end below the high end, above 0, and no step"),
        ({"lr": ("log", 1, 10, 2)}, "expected a low end below the high end, above 0, and no step"),
        ({"lr": ("uniform", 1, 1)}, "expected a low end below the high end"),
        ({"lr": ("uniform", 1)}, "expected ('uniform', low, high)"),
        ({"lr": ("uniform", 0, float("nan"))}, "with finite numbers"),
        ({"n": ("int", 0.5, 3)}, "with integers"),
        ({"n": [[1], [2]]}, "the values to choose from may be strings"),
    ],
)
def test_an_invalid_space_is_an_error_that_names_the_parameter(space: Any, words: str) -> None:
    with pytest.raises(OptionError) as error:
        as_space(space)
    assert words in str(error.value)

"""The settings of a trainer: declared once, checked by their types, and explained in the words of the caller."""

from __future__ import annotations

import inspect
import math
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from stoker import Trainer
from stoker._types import checked, docstrings
from stoker.errors import OptionError
from stoker.train import Checkpoints, Execution, Logging
from stoker.train.settings import TrainerSettings


def test_the_settings_are_the_options_of_the_trainer() -> None:
    """Each option that is a plain value is declared once; the signature repeats its name and default."""
    parameters = inspect.signature(Trainer).parameters
    for field in msgspec.structs.fields(TrainerSettings):
        assert parameters[field.name].default == field.default, field.name


def test_every_setting_is_documented() -> None:
    for kind in (TrainerSettings, Execution, Checkpoints, Logging):
        assert list(docstrings(kind)) == [field.name for field in msgspec.structs.fields(kind)]


def test_numbers_of_numpy_become_those_of_python_and_defaults_stay() -> None:
    found = checked(TrainerSettings(seed=3, max_grad_norm=np.float64(0.5)))
    assert found == TrainerSettings(seed=3, max_grad_norm=0.5)
    assert type(found.max_grad_norm) is float


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("grad_accum_steps", 0, "grad_accum_steps is 0; expected an integer from 1."),
        (
            "grad_accum_steps",
            2**60,
            "grad_accum_steps is 1152921504606846976; expected an integer from 1 up to 281,474,976,710,656.",
        ),
        ("grad_accum_steps", True, "grad_accum_steps is True; expected an integer from 1."),
        ("max_grad_norm", math.nan, "max_grad_norm is nan; expected a number above 0 or None."),
        ("ema", 1.0, "ema is 1.0; expected a number from 0 below 1 or None."),
        ("execution", Execution(graph="yes"), "execution.graph is 'yes'; expected True, False, or 'auto'."),  # type: ignore[arg-type]
        ("execution", "fast", "execution is 'fast'; expected Execution(…)."),
        ("checkpoints", Checkpoints(every=0), "checkpoints.every is 0; expected an integer from 1 or None."),
        ("seed", -1, "seed is -1; expected an integer from 0 or None."),
    ],
)
def test_a_bad_value_is_one_line(name: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        checked(TrainerSettings(**{name: value}))

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


GROUPS: dict[str, Any] = {"execution": Execution, "checkpoints": Checkpoints, "logging": Logging}
FIELDS = [("", field.name) for field in msgspec.structs.fields(TrainerSettings) if field.name not in GROUPS]
FIELDS += [(group, field.name) for group, kind in GROUPS.items() for field in msgspec.structs.fields(kind)]
ABSURD = [math.nan, math.inf, -1, 2**90, "absurd", b"", [], {}, object()]


@pytest.mark.parametrize(("group", "field"), FIELDS)
def test_an_absurd_value_of_any_setting_is_refused_by_its_name(group: str, field: str) -> None:
    refused = []
    for value in ABSURD:
        given = {group: GROUPS[group](**{field: value})} if group else {field: value}
        try:
            checked(TrainerSettings(**given))
        except OptionError as error:
            refused.append((error.parameter, "\n" in str(error)))
    assert set(refused) == {(f"{group}.{field}".lstrip("."), False)}
    assert len(refused) >= len(ABSURD) - 3, "but a few values may be meant"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        (
            {"grad_accum_steps": 2**60},
            "grad_accum_steps is 1152921504606846976; expected an integer from 1 up to 281,474,976,710,656.",
        ),
        ({"ema": 1.0}, "ema is 1.0; expected a number from 0 below 1 or None."),
        ({"execution": Execution(graph="yes")}, "execution.graph is 'yes'; expected True, False, or 'auto'."),  # type: ignore[arg-type]
        ({"execution": "fast"}, "execution is 'fast'; expected Execution(…)."),
    ],
)
def test_a_bad_value_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(OptionError, match=re.escape(line)):
        checked(TrainerSettings(**given))

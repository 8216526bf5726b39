"""Search spaces: names with Optuna distributions, or a short form that YAML can hold.

lr: [log, 1e-5, 1e-1]         a number, uniform in its logarithm
dropout: [uniform, 0, 0.5]    a number; a fourth value is the step
layers: [int, 1, 6]           an integer; `int_log` is uniform in its logarithm
model.name: [gru, mlp]        any other list: one of its values
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optuna import distributions
from optuna.distributions import BaseDistribution

from stoker.errors import OptionError

KINDS = ("uniform", "log", "int", "int_log")
FORMS = "('log', low, high), ('uniform', low, high), ('int', low, high), ('int_log', low, high), or a list of values"


def as_space(given: Mapping[str, Any]) -> dict[str, BaseDistribution]:
    """Check a search space.

    Args:
        given: Names, each with a distribution of Optuna or its short form.

    Returns:
        A distribution of Optuna per name.

    Raises:
        OptionError: The space is empty, or a parameter is none of the forms.

    Example:
        >>> as_space({"width": [32, 64]})
        {'width': CategoricalDistribution(choices=(32, 64))}
    """
    if not isinstance(given, Mapping):
        raise OptionError.expected("space", given, f"a dict of names, each with one of {FORMS}")
    if not given:
        raise OptionError(
            f"space is empty, so there is nothing to search. Give a dict of names, each with one of {FORMS}.", parameter="space"
        )
    return {str(name): _distribution(str(name), value) for name, value in given.items()}


def _distribution(name: str, value: Any) -> BaseDistribution:
    if isinstance(value, distributions.BaseDistribution):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise OptionError(f"space[{name!r}] is {value!r}; expected a distribution of Optuna, or one of {FORMS}.", parameter="space")
    kind, *numbers = value
    if kind not in KINDS:
        if not all(isinstance(choice, str | int | float | bool | None) for choice in value):
            raise OptionError(
                f"space[{name!r}] is {value!r}; the values to choose from may be strings, numbers, True, False or None.",
                parameter="space",
            )
        return distributions.CategoricalDistribution(list(value))
    are_finite = all(
        isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number) for number in numbers
    )
    is_integer, is_log = kind in ("int", "int_log"), kind in ("log", "int_log")
    if not are_finite or len(numbers) not in (2, 3) or (is_integer and any(number != int(number) for number in numbers)):
        what = "integers" if is_integer else "finite numbers"
        raise OptionError(f"space[{name!r}] is {value!r}; expected ({kind!r}, low, high), with {what}.", parameter="space")
    low, high, *step = numbers
    if not low < high or (is_log and (low <= 0 or step)):
        rule = "a low end below the high end" + (", above 0, and no step" if is_log else "")
        raise OptionError(f"space[{name!r}] is {value!r}; expected {rule}.", parameter="space")
    if is_integer:
        return distributions.IntDistribution(int(low), int(high), log=is_log, step=int(step[0]) if step else 1)
    return distributions.FloatDistribution(float(low), float(high), log=is_log, step=float(step[0]) if step else None)

"""Search spaces: names with Optuna distributions, or a short form that YAML can hold.

    lr: [log, 1e-5, 1e-1]         a number, uniform in its logarithm
    dropout: [uniform, 0, 0.5]    a number; a fourth value is the step
    layers: [int, 1, 6]           an integer; `int_log` is uniform in its logarithm
    model.name: [gru, mlp]        any other list: one of its values

A point of a space is a row of numbers between 0 and 1, one per name, so that samplers need not know what a name means.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stoker._types import Array
from stoker.errors import OptionError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

KINDS = ("uniform", "log", "int", "int_log")
FORMS = "('log', low, high), ('uniform', low, high), ('int', low, high), ('int_log', low, high), or a list of values"


@dataclass(frozen=True)
class Space:
    """Parameters by name, in a fixed order."""

    distributions: Mapping[str, BaseDistribution]

    @property
    def num_choices(self) -> Array:
        """The number of values of each categorical parameter, and 0 for each number."""
        return np.array([len(getattr(one, "choices", ())) for one in self.distributions.values()], dtype=np.int64)

    def to_params(self, point: Sequence[float]) -> dict[str, Any]:
        """The values of a point."""
        return {name: _value(one, float(x)) for (name, one), x in zip(self.distributions.items(), point, strict=True)}

    def to_point(self, params: Mapping[str, Any]) -> list[float]:
        """The point of some values: `to_params` of it gives them back."""
        return [_coordinate(one, params[name]) for name, one in self.distributions.items()]


def _edges(one: Any) -> tuple[float, float]:
    """The range that maps to 0..1. That of steps is half a step wider at both ends, so that each value has an equal share."""
    half = one.step / 2 if one.step is not None else 0.0
    low, high = one.low - half, one.high + half
    return (math.log(low), math.log(high)) if one.log else (low, high)


def _value(one: Any, x: float) -> Any:
    if (choices := getattr(one, "choices", None)) is not None:
        return choices[min(int(x * len(choices)), len(choices) - 1)]
    low, high = _edges(one)
    found = low + x * (high - low)
    found = math.exp(found) if one.log else found
    if one.step is not None:
        found = one.low + round((found - one.low) / one.step) * one.step
    found = min(max(found, one.low), one.high)
    return int(found) if isinstance(one.low, int) and isinstance(one.step, int) else float(found)


def _coordinate(one: Any, value: Any) -> float:
    if (choices := getattr(one, "choices", None)) is not None:
        return float((choices.index(value) + 0.5) / len(choices))
    low, high = _edges(one)
    return float((math.log(value) if one.log else value) - low) / (high - low) if high > low else 0.5


def as_space(given: Mapping[str, Any]) -> Space:
    """Check a search space.

    Args:
        given: Names, each with a distribution of Optuna or its short form.

    Returns:
        The space.

    Raises:
        OptionError: The space is empty, or a parameter is none of the forms.

    Example:
        >>> space = as_space({"lr": ("log", 1e-4, 1e-2), "width": [32, 64]})
        >>> space.to_params([0.5, 0.9])
        {'lr': 0.001, 'width': 64}
    """
    if not isinstance(given, Mapping):
        raise OptionError(f"space is {given!r}; expected a dict of names, each with one of {FORMS}.")
    if not given:
        raise OptionError(f"space is empty, so there is nothing to search. Give a dict of names, each with one of {FORMS}.")
    return Space({str(name): _distribution(str(name), value) for name, value in given.items()})


def _distribution(name: str, value: Any) -> BaseDistribution:
    from optuna import distributions

    if isinstance(value, distributions.BaseDistribution):
        return value
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise OptionError(f"space[{name!r}] is {value!r}; expected a distribution of Optuna, or one of {FORMS}.")
    kind, rest = (value[0], list(value[1:])) if value[0] in KINDS else (None, [])
    if kind is None:
        if not all(isinstance(one, str | int | float | bool | None) for one in value):
            raise OptionError(
                f"space[{name!r}] is {value!r}; the values to choose from may be strings, numbers, True, False or None."
            )
        return distributions.CategoricalDistribution(list(value))
    is_number = all(isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one) for one in rest)
    if not is_number or len(rest) not in (2, 3):
        raise OptionError(f"space[{name!r}] is {value!r}; expected ({kind!r}, low, high), with finite numbers.")
    low, high, *step = rest
    if not low < high:
        raise OptionError(f"space[{name!r}] is {value!r}: its low end {low} is not below its high end {high}.")
    if kind in ("log", "int_log") and (low <= 0 or step):
        what = "a logarithm has no step" if step else f"a logarithm needs a low end above 0, found {low}"
        raise OptionError(f"space[{name!r}] is {value!r}: {what}.")
    if kind in ("int", "int_log"):
        if any(one != int(one) for one in rest):
            raise OptionError(f"space[{name!r}] is {value!r}; expected integers.")
        return distributions.IntDistribution(int(low), int(high), log=kind == "int_log", step=int(step[0]) if step else 1)
    return distributions.FloatDistribution(float(low), float(high), log=kind == "log", step=float(step[0]) if step else None)

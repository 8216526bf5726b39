"""Schedules: the factor of the learning rate, as a pure function of the update's number. So resume needs no state.

    schedule(step, total) -> factor

`step` is the number of the update, from 0; `total` the number of all updates, None where it is not known. The factor is
multiplied with the learning rate of each group. A `warmup` (and `every`) is a number of updates if it is whole, and a share
of all updates if it is a fraction. The first update of a warm-up already has a rate above 0: `(step + 1) / (warmup + 1)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stoker.errors import OptionError

Schedule = Callable[[int, int | None], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Constant:
    """The same rate always, after a warm-up if one is given."""

    warmup: int | float = 0

    def __post_init__(self) -> None:
        _check_updates("warmup", self.warmup)

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        return _ramp(step, _updates(self, "warmup", total))


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """Up in a warm-up, then down a straight line that would reach `end` right after the last update."""

    warmup: int | float = 0
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_updates("warmup", self.warmup)
        _check_factor("end", self.end)

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        warmup = _updates(self, "warmup", total)
        return _ramp(step, warmup) if step < warmup else 1.0 + (self.end - 1.0) * _share(self, step, warmup, total)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cosine:
    """Up in a warm-up, then down half a cosine that would reach `end` right after the last update."""

    warmup: int | float = 0
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_updates("warmup", self.warmup)
        _check_factor("end", self.end)

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        warmup = _updates(self, "warmup", total)
        return _ramp(step, warmup) if step < warmup else _half_cosine(1.0, self.end, _share(self, step, warmup, total))


@dataclass(frozen=True, kw_only=True, slots=True)
class OneCycle:
    """Up half a cosine from `start`, then down half a cosine to `end`, which the last update has."""

    warmup: int | float = 0.3
    start: float = 1 / 25
    end: float = 1e-4

    def __post_init__(self) -> None:
        _check_updates("warmup", self.warmup)
        _check_factor("start", self.start)
        _check_factor("end", self.end)

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        total = _known(self, total)
        warmup = self.warmup if isinstance(self.warmup, int) else self.warmup * total
        top = max(0.0, warmup - 1.0)  # the update that has the full rate; between two of them if the share is no whole number
        if step <= top:
            return _half_cosine(self.start, 1.0, step / top if top else 1.0)
        return _half_cosine(1.0, self.end, min(1.0, (step - top) / max(total - 1.0 - top, 1e-9)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Steps:
    """Multiplied by `factor` after each `every` updates."""

    every: int | float
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_updates("every", self.every)
        _check_factor("factor", self.factor)
        if not self.every:
            raise OptionError(f"every is {self.every!r}; expected a number of updates above 0, or a share of all updates.")

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        try:
            return float(self.factor ** (step // max(1, _updates(self, "every", total))))
        except OverflowError:
            raise OptionError(f"Steps: factor {self.factor:g} is beyond all numbers by update {step:,}; expected less.") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Inverse:
    """Up in a warm-up, then down with the square root of the number of updates. Needs no end."""

    warmup: int | float = 0

    def __post_init__(self) -> None:
        _check_updates("warmup", self.warmup)

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        warmup = _updates(self, "warmup", total)
        return _ramp(step, warmup) if step < warmup else math.sqrt((warmup + 1) / (step + 1))


OURS_FOR = {
    "CosineAnnealingLR": "Cosine()",
    "CosineAnnealingWarmRestarts": "Cosine()",
    "ConstantLR": "Constant()",
    "ExponentialLR": "Steps(every=…, factor=…)",
    "LambdaLR": "a function (step, total) -> factor",
    "LinearLR": "Linear()",
    "MultiStepLR": "a function (step, total) -> factor",
    "OneCycleLR": "OneCycle()",
    "StepLR": "Steps(every=…, factor=…)",
}


def as_schedule(given: Any) -> Schedule:
    """The schedule that was given: one of ours, or a plain function; None is `Constant()`."""
    if given is None:
        return Constant()
    if isinstance(given, Constant | Linear | Cosine | OneCycle | Steps | Inverse):
        return given
    kind = given if isinstance(given, type) else type(given)
    if any(parent.__name__ == "LRScheduler" for parent in kind.__mro__):
        ours = OURS_FOR.get(kind.__name__, "Linear(), Cosine(), OneCycle(), Steps(…) or a function (step, total) -> factor")
        raise OptionError(
            f"schedule is torch's {kind.__name__}, which has a state of its own. Give {ours} of stoker.train.schedule."
        )
    if isinstance(given, type) or not callable(given):
        raise OptionError(f"schedule is {given!r}; expected Linear(), Cosine(), OneCycle() or a function (step, total) -> factor.")

    def checked(step: int, total: int | None) -> float:
        factor = given(step, total)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.0 <= factor < math.inf:
            raise OptionError(f"schedule gave {factor!r} for update {step:,}; expected a finite number of at least 0.")
        return float(factor)

    return checked


def _check_updates(name: str, value: Any) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value <= (1.0 if isinstance(value, float) else math.inf):
        raise OptionError(f"{name} is {value!r}; expected a whole number of updates, or a share of all updates from 0.0 to 1.0.")


def _check_factor(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value < math.inf:
        raise OptionError(f"{name} is {value!r}; expected a factor of the learning rate, at least 0.")


def _known(schedule: object, total: int | None) -> int:
    if total is None:
        raise OptionError(
            f"{type(schedule).__name__} needs the number of all updates, and the batches have no length. "
            f"Give batches that have one, whole numbers of updates, or Constant(), Steps(every=…) or Inverse(warmup=…)."
        )
    return total


def _updates(schedule: Constant | Linear | Cosine | Steps | Inverse, name: str, total: int | None) -> int:
    value: int | float = getattr(schedule, name)
    return value if isinstance(value, int) else round(value * _known(schedule, total))


def _ramp(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / (warmup + 1))


def _share(schedule: object, step: int, warmup: int, total: int | None) -> float:
    """How much of the way after the warm-up is done; it stays at 1 past the end."""
    rest = _known(schedule, total) - warmup
    return min(1.0, (step - warmup) / rest) if rest > 0 else 1.0


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0

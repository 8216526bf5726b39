"""Schedules: the factor of the learning rate, as a pure function of the update's number. So resume needs no state.

    schedule(step, total) -> factor

`step` is the number of the update, from 0; `total` the number of all updates, None where it is not known. The factor is
multiplied with the learning rate of each group. A `warmup` (and `every`) is a number of updates if it is an integer, and a
share of all updates if it is a float. The first update of a warm-up already has a rate above 0: `(step + 1) / (warmup + 1)`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from stoker._types import check_fields
from stoker.errors import OptionError

Schedule = Callable[[int, int | None], float]
Updates = Annotated[int, Meta(ge=0, le=2**48)] | Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=0)]


class Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name"):
    """One kind of a section of a config, which its key `name` names."""


class _Limited(Choice, frozen=True, kw_only=True):
    """A schedule. Its limits hold in Python too, where msgspec checks nothing."""

    def __post_init__(self) -> None:
        check_fields(self)


class _Warmed(_Limited, frozen=True, kw_only=True):
    """A schedule that begins with a warm-up."""

    warmup: Updates = 0
    """Updates of the warm-up; a fraction is a share of all."""

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        warmup = _updates(self, "warmup", total)
        return (step + 1) / (warmup + 1) if step < warmup else self._after(step, warmup, total)

    def _after(self, step: int, warmup: int, total: int | None) -> float:
        raise NotImplementedError

    def _share(self, step: int, warmup: int, total: int | None) -> float:
        """How much of the way after the warm-up is done; it stays at 1 past the end."""
        rest = _known(self, total) - warmup
        return min(1.0, (step - warmup) / rest) if rest > 0 else 1.0


class Constant(_Warmed, frozen=True, kw_only=True, tag="constant"):
    """The learning rate stays, after a warm-up if one is given.

    Example:
        >>> [round(Constant(warmup=1)(step, 100), 3) for step in (0, 1, 2)]
        [0.5, 1.0, 1.0]
    """

    def _after(self, step: int, warmup: int, total: int | None) -> float:
        return 1.0


class Linear(_Warmed, frozen=True, kw_only=True, tag="linear"):
    """Up during the warm-up, then down in a straight line that would reach `end` right after the last update.

    Example:
        >>> [round(Linear()(step, 100), 3) for step in (0, 25, 50)]
        [1.0, 0.75, 0.5]
    """

    end: Factor = 0.0
    """Factor after the last update."""

    def _after(self, step: int, warmup: int, total: int | None) -> float:
        return 1.0 + (self.end - 1.0) * self._share(step, warmup, total)


class Cosine(_Warmed, frozen=True, kw_only=True, tag="cosine"):
    """Up during the warm-up, then down half a cosine that would reach `end` right after the last update.

    Example:
        >>> [round(Cosine()(step, 100), 3) for step in (0, 50, 100)]
        [1.0, 0.5, 0.0]
    """

    end: Factor = 0.0
    """Factor after the last update."""

    def _after(self, step: int, warmup: int, total: int | None) -> float:
        return _half_cosine(1.0, self.end, self._share(step, warmup, total))


class OneCycle(_Limited, frozen=True, kw_only=True, tag="one_cycle"):
    """Up from a low start and down to a lower end, both along half a cosine.

    Example:
        >>> [round(OneCycle()(step, 100), 3) for step in (0, 29, 99)]
        [0.04, 1.0, 0.0]
    """

    warmup: Updates = 0.3
    """Updates of the rise; a fraction is a share of all."""
    start: Factor = 1 / 25
    """Factor at the first update."""
    end: Factor = 1e-4
    """Factor at the last update."""

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        total = _known(self, total)
        warmup = self.warmup if isinstance(self.warmup, int) else self.warmup * total
        top = max(0.0, warmup - 1.0)  # the update that has the full rate; between two of them if the share is not an integer
        if step <= top:
            return _half_cosine(self.start, 1.0, step / top if top else 1.0)
        return _half_cosine(1.0, self.end, min(1.0, (step - top) / max(total - 1.0 - top, 1e-9)))


class StepDecay(_Limited, frozen=True, kw_only=True, tag="steps"):
    """Multiplied by `factor` after each `every` updates.

    Example:
        >>> [round(StepDecay(every=10)(step, None), 3) for step in (0, 10, 20)]
        [1.0, 0.1, 0.01]
    """

    every: Annotated[int, Meta(ge=1, le=2**48)] | Annotated[float, Meta(gt=0, le=1)]
    """Updates between two decays; a fraction is a share of all."""
    factor: Factor = 0.1
    """What the learning rate is multiplied by."""

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        try:
            return float(self.factor ** (step // max(1, _updates(self, "every", total))))
        except OverflowError:
            raise OptionError(
                f"StepDecay: factor {self.factor:g} overflows by update {step:,}; expected less.", parameter="schedule"
            ) from None


class Inverse(_Warmed, frozen=True, kw_only=True, tag="inverse"):
    """Up during the warm-up, then down with the square root of the number of updates. Needs no end.

    Example:
        >>> [round(Inverse()(step, None), 3) for step in (0, 3, 99)]
        [1.0, 0.5, 0.1]
    """

    def _after(self, step: int, warmup: int, total: int | None) -> float:
        return math.sqrt((warmup + 1) / (step + 1))


AnySchedule = Constant | Linear | Cosine | OneCycle | StepDecay | Inverse

# Schedulers of torch: those that are functions of the update's number become one of it. Others keep a state or follow a metric.

OURS_FOR = {
    "OneCycleLR": "OneCycle(), as torch's changes the momentum too",
    "CyclicLR": "a function (step, total) -> factor, as torch's changes the momentum too",
    "ReduceLROnPlateau": "Cosine() or StepDecay(every=…), and early_stopping=EarlyStopping(…) for what follows a metric",
}
_FUNCTIONS = {
    "ConstantLR": "factor total_iters",
    "CosineAnnealingLR": "T_max eta_min",
    "CosineAnnealingWarmRestarts": "T_0 T_mult eta_min",
    "ExponentialLR": "gamma",
    "LinearLR": "start_factor end_factor total_iters",
    "MultiStepLR": "milestones gamma",
    "PolynomialLR": "total_iters power",
    "StepLR": "step_size gamma",
}
"""Schedulers of torch with a closed form, and the attributes that it depends on."""


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """The factor of a scheduler of torch at each update, computed from the number of the update alone."""

    kind: str
    options: tuple[tuple[str, Any], ...]
    base: float
    """The learning rate that `eta_min` is a part of."""

    def __call__(self, step: int, total: int | None) -> float:
        """The factor of one update."""
        o = dict(self.options)
        if self.kind in ("StepLR", "ExponentialLR", "MultiStepLR"):
            decays = sum(milestone <= step for milestone in o["milestones"]) if "milestones" in o else step // o.get("step_size", 1)
            try:
                return math.pow(o["gamma"], decays)
            except OverflowError:
                raise OptionError(
                    f"{self.kind}: gamma {o['gamma']:g} overflows by update {step:,}; expected less.", parameter="schedule"
                ) from None
        if self.kind == "ConstantLR":
            return float(o["factor"] if step < o["total_iters"] or not o["total_iters"] else 1.0)  # as torch does
        if self.kind == "LinearLR":
            return float(o["start_factor"] + (o["end_factor"] - o["start_factor"]) * min(1.0, step / o["total_iters"]))
        if self.kind == "PolynomialLR":
            return float((1.0 - min(1.0, step / o["total_iters"])) ** o["power"])
        period = o.get("T_max") or o["T_0"]
        if self.kind == "CosineAnnealingWarmRestarts":
            step = step % period if o["T_mult"] == 1 else step
            while step >= period:
                step -= period
                period *= o["T_mult"]
        return _half_cosine(1.0, o["eta_min"] / self.base, step / period)


def is_torch_scheduler(given: Any) -> bool:
    """Whether this is a scheduler of torch, or a class of one."""
    kind = given if isinstance(given, type) else type(given)
    return any(parent.__name__ == "LRScheduler" for parent in kind.__mro__)


def scheduled_rates(given: Any, optimizer: Any) -> tuple[float, ...]:
    """The learning rates that a scheduler of torch multiplies: when it was made, it changed those of the optimizer already."""
    if given.optimizer is not optimizer:
        raise OptionError(
            f"schedule is a {type(given).__name__} of another optimizer. Make it with the optimizer of the trainer (an instance, "
            "not a function that makes one).",
            parameter="schedule",
        )
    return tuple(float(rate) for rate in given.base_lrs)


def _of_torch(given: Any) -> Schedule:
    kind = type(given).__name__ if not isinstance(given, type) else given.__name__
    known = not isinstance(given, type) and type(given).__module__ == "torch.optim.lr_scheduler"
    if not known or (kind not in _FUNCTIONS and kind != "LambdaLR"):
        ours = OURS_FOR.get(kind, "Linear(), Cosine(), OneCycle(), StepDecay(…), a LambdaLR or a function (step, total) -> factor")
        what = "a class, not a scheduler" if isinstance(given, type) else "not a function of the number of the update"
        raise OptionError(
            f"schedule is torch's {kind}, which is {what}. Give {ours}; ours are in stoker.train.", parameter="schedule"
        )
    if given.last_epoch != 0:
        raise OptionError(
            f"schedule is a {kind} that has made {given.last_epoch:,} steps. Give a new one; the trainer counts updates.",
            parameter="schedule",
        )
    rates = {float(rate) for rate in given.base_lrs}
    if kind == "LambdaLR":
        functions = list(given.lr_lambdas)
        if any(function is not functions[0] for function in functions):
            raise OptionError(
                f"schedule is a LambdaLR with {len(functions)} functions; expected one for all parameter groups.",
                parameter="schedule",
            )
        function = functions[0]
        return _checked(lambda step, total: function(step))
    values = {name: getattr(given, name) for name in _FUNCTIONS[kind].split()}
    if "milestones" in values:
        values["milestones"] = tuple(sorted(values["milestones"].elements()))
    if values.get("eta_min") and (len(rates) > 1 or not min(rates)):
        raise OptionError(
            f"schedule is a {kind} with eta_min={values['eta_min']:g}, which is another factor for each of the learning rates "
            f"{sorted(rates)}. Use Cosine(end=…), whose end is a factor.",
            parameter="end",
        )
    return ClosedForm(kind=kind, options=tuple(values.items()), base=min(rates) or 1.0)


def as_schedule(given: Any) -> Schedule:
    """The schedule that was given: one of ours, a plain function, or one of torch that is a function of the step; None is `Constant()`."""
    if given is None:
        return Constant()
    if isinstance(given, AnySchedule):
        return given
    if is_torch_scheduler(given):
        return _of_torch(given)
    if isinstance(given, type) or not callable(given):
        raise OptionError.expected("schedule", given, "Linear(), Cosine(), OneCycle() or a function (step, total) -> factor")
    return _checked(given)


def _checked(given: Callable[[int, int | None], Any]) -> Schedule:
    @functools.wraps(given)
    def checked(step: int, total: int | None) -> float:
        factor = given(step, total)
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0.0 <= factor < math.inf:
            raise OptionError(
                f"schedule gave {factor!r} for update {step:,}; expected a finite number of at least 0.", parameter="schedule"
            )
        return float(factor)

    return checked


def _known(schedule: object, total: int | None) -> int:
    if total is None:
        raise OptionError(
            f"{type(schedule).__name__} needs the number of all updates, and the batches have no length. "
            f"Give batches that have one, integers of updates, or Constant(), StepDecay(every=…) or Inverse(warmup=…).",
            parameter="every",
        )
    return total


def _updates(schedule: object, name: str, total: int | None) -> int:
    value: int | float = getattr(schedule, name)
    return value if isinstance(value, int) else round(value * _known(schedule, total))


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0

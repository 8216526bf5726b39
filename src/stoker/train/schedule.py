"""Schedules: the factor of the learning rate, as a pure function of the update's number. So resume needs no state.

    schedule(step, total) -> factor

`step` is the number of the update, from 0; `total` the number of all updates, None where it is not known. The factor is
multiplied with the learning rate of each group. A `warmup` (and `every`) is a number of updates if it is an integer, and a
share of all updates if it is a float. The first update of a warm-up already has a rate above 0: `(step + 1) / (warmup + 1)`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from stoker.errors import CheckpointInvalidError, OptionError

Schedule = Callable[[int, int | None], float]
Updates = Annotated[int, Meta(ge=0, le=2**48)] | Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=0)]


class Choice(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="name"):
    """One kind of a section of a config, which its key `name` names."""


class _Checked(Choice, frozen=True, kw_only=True):
    """A schedule. Its limits hold in Python too, where msgspec checks nothing."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if name not in ("warmup", "every"):
                if not is_number or not 0.0 <= value < math.inf:
                    raise OptionError(f"{name} is {value!r}; expected a factor of the learning rate, at least 0.")
            elif not is_number or not 0 <= value <= (1.0 if isinstance(value, float) else math.inf):
                raise OptionError(
                    f"{name} is {value!r}; expected an integer of updates, or a share of all updates from 0.0 to 1.0."
                )
            elif name == "every" and not value:
                raise OptionError(f"{name} is {value!r}; expected a number of updates above 0, or a share of all updates.")


class _Warmed(_Checked, frozen=True, kw_only=True):
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


class OneCycle(_Checked, frozen=True, kw_only=True, tag="one_cycle"):
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


class StepDecay(_Checked, frozen=True, kw_only=True, tag="steps"):
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
            raise OptionError(f"StepDecay: factor {self.factor:g} overflows by update {step:,}; expected less.") from None


class Inverse(_Warmed, frozen=True, kw_only=True, tag="inverse"):
    """Up during the warm-up, then down with the square root of the number of updates. Needs no end.

    Example:
        >>> [round(Inverse()(step, None), 3) for step in (0, 3, 99)]
        [1.0, 0.5, 0.1]
    """

    def _after(self, step: int, warmup: int, total: int | None) -> float:
        return math.sqrt((warmup + 1) / (step + 1))


AnySchedule = Constant | Linear | Cosine | OneCycle | StepDecay | Inverse

OURS_FOR = {
    "CosineAnnealingLR": "Cosine()",
    "CosineAnnealingWarmRestarts": "Cosine()",
    "ConstantLR": "Constant()",
    "ExponentialLR": "StepDecay(every=…, factor=…)",
    "LambdaLR": "a function (step, total) -> factor",
    "LinearLR": "Linear()",
    "MultiStepLR": "a function (step, total) -> factor",
    "OneCycleLR": "OneCycle()",
    "StepLR": "StepDecay(every=…, factor=…)",
}


def as_schedule(given: Any) -> Schedule:
    """The schedule that was given: one of ours, or a plain function; None is `Constant()`."""
    if given is None:
        return Constant()
    if isinstance(given, AnySchedule):
        return given
    kind = given if isinstance(given, type) else type(given)
    if any(parent.__name__ == "LRScheduler" for parent in kind.__mro__):
        ours = OURS_FOR.get(kind.__name__, "Linear(), Cosine(), OneCycle(), StepDecay(…) or a function (step, total) -> factor")
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


def _known(schedule: object, total: int | None) -> int:
    if total is None:
        raise OptionError(
            f"{type(schedule).__name__} needs the number of all updates, and the batches have no length. "
            f"Give batches that have one, integers of updates, or Constant(), StepDecay(every=…) or Inverse(warmup=…)."
        )
    return total


def _updates(schedule: object, name: str, total: int | None) -> int:
    value: int | float = getattr(schedule, name)
    return value if isinstance(value, int) else round(value * _known(schedule, total))


def _half_cosine(first: float, last: float, share: float) -> float:
    return last + (first - last) * (1.0 + math.cos(math.pi * share)) / 2.0


# Early stopping: when a metric no longer gets better. Knows no model; its state is a few numbers.

Mode = Literal["min", "max"]

HIGHER_IS_BETTER = frozenset(
    "acc accuracy auc auroc auprc ap f1 precision recall sensitivity specificity r2 score ndcg mrr bleu".split()
)
LOWER_IS_BETTER = frozenset("loss error err mae mse rmse mape smape crps nll perplexity ppl quantile pinball wer cer".split())


class Verdict(NamedTuple):
    """What one more value of the metric means."""

    improved: bool
    stop: bool


def guess_mode(metric: str) -> Mode | None:
    """Whether less or more of a metric is better, by the words in its name; None where no word decides."""
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    lower, higher = words & LOWER_IS_BETTER, words & HIGHER_IS_BETTER
    if bool(lower) == bool(higher):
        return None
    return "min" if lower else "max"


class EarlyStopping:
    """Stops once `metric` has not got better than its best by more than `min_delta` in `patience` evaluations in a row.

    A value that is NaN or Inf is never better, and counts as an evaluation without progress.

    Args:
        metric: Name of the metric, such as `"val_loss"`.
        patience: Evaluations in a row without progress after which the run stops.
        mode: `"min"` if less is better, `"max"` if more is; None guesses it from the name.
        min_delta: The least improvement that counts.

    Example:
        >>> stopping = EarlyStopping("val_loss", patience=2)
        >>> [stopping.update(value, epoch).stop for epoch, value in enumerate([1.0, 0.9, 0.95, 0.92])]
        [False, False, False, True]
    """

    def __init__(self, metric: str, *, patience: int = 5, mode: Mode | None = None, min_delta: float = 0.0) -> None:
        if not isinstance(metric, str) or not metric:
            raise OptionError(f"metric is {metric!r}; expected the name of a metric, such as 'val_loss'.")
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise OptionError(f"patience is {patience!r}; expected an integer of evaluations, at least 1.")
        if mode not in ("min", "max", None):
            raise OptionError(f"mode is {mode!r}; expected 'min', 'max' or None.")
        if not 0.0 <= min_delta < math.inf:
            raise OptionError(f"min_delta is {min_delta!r}; expected a number of at least 0.")
        guessed = guess_mode(metric) if mode is None else mode
        if guessed is None:
            raise OptionError(f"the name {metric!r} does not tell whether less or more is better. Give mode='min' or mode='max'.")
        self.metric = metric
        self.patience = patience
        self.mode: Mode = guessed
        self.min_delta = float(min_delta)
        better = "less" if self.mode == "min" else "more"
        self.note = f"{better} {metric} is better (guessed from its name; mode= says otherwise)" if mode is None else None
        self.best: float | None = None
        self.best_epoch: int | None = None
        self.waited = 0
        """Evaluations in a row without progress."""

    def update(self, value: float, epoch: int) -> Verdict:
        """Take in the value of one evaluation."""
        sign = -1 if self.mode == "min" else 1
        improved = math.isfinite(value) and (self.best is None or sign * (value - self.best) > self.min_delta)
        if improved:
            self.best, self.best_epoch, self.waited = float(value), epoch, 0
        else:
            self.waited += 1
        return Verdict(improved=improved, stop=self.waited >= self.patience)

    def state_dict(self) -> dict[str, str | float | int | None]:
        """What a checkpoint keeps, as JSON values."""
        return {"metric": self.metric, "mode": self.mode, "best": self.best, "best_epoch": self.best_epoch, "waited": self.waited}

    def load_state_dict(self, state: Mapping[str, str | float | int | None]) -> None:
        """Continue from a checkpoint: it must be about the same metric."""
        best, best_epoch, waited = state.get("best"), state.get("best_epoch"), state.get("waited")
        if (state.get("metric"), state.get("mode")) != (self.metric, self.mode):
            found, expected = f"{state.get('metric')!r} ({state.get('mode')})", f"{self.metric!r} ({self.mode})"
            raise CheckpointInvalidError(
                f"the saved early stopping is about {found}, this one about {expected}. Give the same one to resume."
            )
        is_best = best is None or (isinstance(best, float | int) and not isinstance(best, bool) and math.isfinite(best))
        is_counted = all(type(count) is int and 0 <= count < 2**53 for count in (0 if best_epoch is None else best_epoch, waited))
        if not is_best or not is_counted or (best is None) != (best_epoch is None):
            raise CheckpointInvalidError(f"the saved early stopping cannot be read: {dict(state)!r}. Use an earlier checkpoint.")
        self.best, self.best_epoch, self.waited = None if best is None else float(best), best_epoch, waited  # type: ignore[assignment]

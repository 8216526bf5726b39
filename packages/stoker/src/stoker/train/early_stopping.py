"""Early stopping: when a metric no longer gets better. Knows no model; its state is a few numbers."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from stoker._types import Count, converted
from stoker.errors import CheckpointInvalidError, OptionError

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
        restore_best: Give the model its best weights when the run has stopped early or has finished. False keeps the last ones.

    Example:
        >>> stopping = EarlyStopping("val_loss", patience=2)
        >>> [stopping.update(value, epoch).stop for epoch, value in enumerate([1.0, 0.9, 0.95, 0.92])]
        [False, False, False, True]
    """

    def __init__(
        self, metric: str, *, patience: int = 5, mode: Mode | None = None, min_delta: float = 0.0, restore_best: bool = True
    ) -> None:
        self.metric: str = converted("metric", metric, Annotated[str, Meta(min_length=1)])
        self.patience: int = converted("patience", patience, Count)
        self.min_delta: float = converted("min_delta", min_delta, Annotated[float, Meta(ge=0)])
        mode = converted("mode", mode, Mode | None)
        guessed = guess_mode(metric) if mode is None else mode
        if guessed is None:
            raise OptionError(
                f"the name {metric!r} does not say whether less or more is better. Give mode='min' or mode='max'.", parameter="mode"
            )
        self.mode: Mode = guessed
        self.restore_best = bool(restore_best)
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
        counts = (best_epoch or 0, waited)
        is_counted = all(type(count) is int and 0 <= count < 2**53 for count in counts)
        if not is_counted or not (best is None or (isinstance(best, float | int) and math.isfinite(best))):
            raise CheckpointInvalidError(f"the saved early stopping cannot be read: {dict(state)!r}. Use an earlier checkpoint.")
        self.best, self.best_epoch, self.waited = None if best is None else float(best), best_epoch, waited  # type: ignore[assignment]

"""The budget of a search: seconds or trials, and when it is used up."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

import optuna
from optuna.trial import TrialState

from stoker._clock import now_ns
from stoker.errors import OptionError

UNITS = {"s": 1, "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def parse_budget(budget: str | int | float | None) -> tuple[float | None, int | None]:
    """Return seconds or a number of trials from what a user writes.

    Raises:
        OptionError: It is neither, or not above 0.
    """
    error = OptionError(
        f"budget is {budget!r}; expected seconds above 0 such as '60s', '10min', '2h' or 60.0, or a number of trials such as 200.",
        parameter="budget",
    )
    if budget is None:
        return None, None
    if isinstance(budget, bool) or not isinstance(budget, str | int | float):
        raise error
    if isinstance(budget, str):
        parts = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(s|sec|m|min|h|d|trials)?\s*", budget)
        if parts is None or (parts[2] not in UNITS and "." in parts[1]):
            raise error
        budget = float(parts[1]) * UNITS[parts[2]] if parts[2] in UNITS else int(parts[1])
    if not math.isfinite(budget) or budget <= 0:
        raise error
    return (None, budget) if isinstance(budget, int) else (float(budget), None)


@dataclass
class SearchBudget:
    """What a search may use.

    Args:
        seconds: Time, or None.
        most: Number of trials, or None.
        used: Seconds that earlier searches of the study took.
    """

    seconds: float | None
    most: int | None
    used: float = 0.0
    began_ns: int = field(default_factory=now_ns)

    def spent(self) -> float:
        """Return the seconds that the study took so far."""
        return self.used + (now_ns() - self.began_ns) / 1e9

    def is_over(self) -> bool:
        """Whether the seconds are used up."""
        return self.seconds is not None and self.spent() >= self.seconds

    def has_to_end(self, study: optuna.Study) -> bool:
        """Whether the seconds are used up and there is a result, or twice the seconds are used up."""
        if self.seconds is None or not self.is_over():
            return False
        is_twice = self.spent() - self.used > 2 * self.seconds
        return is_twice or bool(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)))

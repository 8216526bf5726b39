"""Finished trials as Optuna keeps them, for tests of what is computed from trials."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from stoker.tune.trial import RECORD


def frozen(
    number: int,
    value: float | None = None,
    *,
    state: TrialState = TrialState.COMPLETE,
    steps: Mapping[int, float] | None = None,
    repeat_of: int | None = None,
    seed: int = 0,
    **attributes: Any,
) -> FrozenTrial:
    record: dict[str, Any] = {"seed": seed} if repeat_of is None else {"seed": seed, "repeat_of": repeat_of}
    trial = optuna.create_trial(
        state=state, value=value, intermediate_values=dict(steps or {}), user_attrs={RECORD: record, **attributes}
    )
    trial.number = number
    return trial

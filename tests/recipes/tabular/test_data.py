"""Tables become subjects: protected lengths, and settings that are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from tests.recipes.tabular.frames import make_events, make_users

from stoker_recipes.tabular.data import prepare
from stoker_recipes.tabular.settings import TabularSettings


def prepared(events: pd.DataFrame, **options: Any) -> Any:
    return prepare(events, key="user", settings=TabularSettings(size="s", **options), say=lambda *_: None)


def test_a_length_that_few_subjects_have_is_cut() -> None:
    events = pd.DataFrame({"user": np.repeat(np.arange(40), [*[3] * 39, 30]), "n": 1})
    assert prepared(events).spec.max_length == 3
    assert prepared(events, protect=False).spec.max_length == 30  # negative control
    assert prepared(events).lengths.tolist() == [3] * 40


def test_subjects_without_events_are_learned() -> None:
    users = make_users(60)
    settings = TabularSettings(size="s", protect=False)
    found = prepare(make_events(40), key="user", context=users, settings=settings, say=lambda *_: None)
    assert found.lengths[40:].tolist() == [0] * 20
    assert found.spec.min_length == 0
    assert found.context is not None
    assert len(found.context) == 60

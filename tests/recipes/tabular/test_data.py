"""Tables become subjects: protected lengths, and settings that are checked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from tests.recipes.tabular.frames import make_events, make_users

from stoker.errors import OptionError
from stoker_recipes.tabular.data import TabularSettings, make_settings, prepare


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


def test_codes_never_leave_their_classes() -> None:
    found = prepared(make_events(80))
    layout = found.spec.layout()
    sizes = [sub.num_classes for sub in layout.subs[layout.num_positions :]]
    assert (found.codes < sizes).all()
    assert found.codes.dtype == np.uint8  # no sub-column has more than 256 classes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "xl"}, "size is 'xl'; expected one of s, m, l"),
        ({"epochs": 0}, "epochs is 0; expected an integer from 1"),
        ({"epochs": 1.5}, "epochs is 1.5; expected an integer"),
        ({"max_seconds": 0}, "max_seconds is 0; expected a number from 0.001"),
        ({"epoch": 3}, "there is no option 'epoch'; expected one of size, epochs"),
        ({"batch_size": True}, "batch_size is True; expected an integer"),
    ],
)
def test_a_bad_option_has_one_clear_line(options: dict[str, Any], message: str) -> None:
    """Upstream takes 0 epochs as 100, and unknown arguments as nothing."""
    with pytest.raises(OptionError, match=message):
        make_settings(**options)

"""Settings are checked: an invalid one is an error of one line that names it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recipes.running import absurd_settings

from stoker.errors import OptionError
from stoker_recipes.run_folder import make_settings
from stoker_recipes.time_moe.settings import TimeMoeSettings

OUT_OF_RANGE: list[dict[str, Any]] = [
    {"steps": 0},
    {"lr": -1.0},
    {"lr_end": 1.0},
    {"valid": 1.0},
    {"head_weights": [0.0]},
    {"stride": 4},
]


@pytest.mark.parametrize("given", [*absurd_settings(TimeMoeSettings), *OUT_OF_RANGE], ids=lambda given: next(iter(given)))
def test_an_invalid_setting_is_named(given: dict[str, Any]) -> None:
    make_settings(TimeMoeSettings, {"data": "x"})  # control: the others are valid
    with pytest.raises(OptionError, match=next(iter(given))) as raised:
        make_settings(TimeMoeSettings, {"data": "x", **given})
    assert "\n" not in str(raised.value)

"""Settings are checked: an invalid one is an error of one line that names it."""

from __future__ import annotations

from typing import Any

from tests.recipes.running import assert_invalid_settings_are_named

from stoker_recipes.time_moe.settings import TimeMoeSettings

OUT_OF_RANGE: list[dict[str, Any]] = [
    {"steps": 0},
    {"lr": -1.0},
    {"lr_end": 1.0},
    {"valid": 1.0},
    {"head_weights": [0.0]},
    {"stride": 4},
]


def test_an_invalid_setting_is_named() -> None:
    assert_invalid_settings_are_named(TimeMoeSettings, *OUT_OF_RANGE)

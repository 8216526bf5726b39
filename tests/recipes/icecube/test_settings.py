"""Settings are checked: an invalid one is an error of one line that names it."""

from __future__ import annotations

from typing import Any

from tests.recipes.running import assert_invalid_settings_are_named

from stoker_recipes.icecube.settings import IceCubeSettings

OUT_OF_RANGE: list[dict[str, Any]] = [{"size": "9m"}, {"epochs": 0}, {"lr": 0.0}, {"seed": -1}]


def test_an_invalid_setting_is_named() -> None:
    assert_invalid_settings_are_named(IceCubeSettings, *OUT_OF_RANGE)

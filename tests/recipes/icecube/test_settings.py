"""Settings are checked: an invalid one is an error of one line that names it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.recipes.running import absurd_settings

from stoker.errors import OptionError
from stoker_recipes.icecube.settings import IceCubeSettings
from stoker_recipes.run_folder import make_settings

OUT_OF_RANGE: list[dict[str, Any]] = [{"size": "9m"}, {"epochs": 0}, {"lr": 0.0}, {"seed": -1}]


@pytest.mark.parametrize("given", [*absurd_settings(IceCubeSettings), *OUT_OF_RANGE], ids=lambda given: next(iter(given)))
def test_an_invalid_setting_is_named(given: dict[str, Any]) -> None:
    make_settings(IceCubeSettings, {"data": "x"})  # control: the others are valid
    with pytest.raises(OptionError, match=next(iter(given))) as raised:
        make_settings(IceCubeSettings, {"data": "x", **given})
    assert "\n" not in str(raised.value)

"""Settings are checked: an invalid one is an error of one line that names it."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.errors import OptionError
from stoker_recipes.icecube.settings import make_settings


@pytest.mark.parametrize("given", [{"size": "9m"}, {"epochs": 0}, {"lr": 0.0}, {"seed": -1}, {"epoch": 3}, {"epochs": "x"}])
def test_an_invalid_setting_is_named(given: dict[str, Any]) -> None:
    make_settings({"data": "x"})  # control: the others are valid
    with pytest.raises(OptionError, match=next(iter(given))) as raised:
        make_settings({"data": "x", **given})
    assert "\n" not in str(raised.value)

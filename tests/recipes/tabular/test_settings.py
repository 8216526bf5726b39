"""Settings are checked: an invalid one is an error of one line."""

from __future__ import annotations

from typing import Any

import pytest

from stoker.errors import OptionError
from stoker_recipes.tabular.settings import make_settings


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

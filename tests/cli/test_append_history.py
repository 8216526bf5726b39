"""`stoker history`: the versions of a store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from tests.cli.calling import Done

Stoker = Callable[..., Done]


def test_versions_are_listed_for_people_and_programs(stoker: Stoker, packed_prices: Path, day: Path) -> None:
    stoker("append", packed_prices, day, "--quiet")
    assert "day.csv" in stoker("history", packed_prices).out
    found = json.loads(stoker("history", packed_prices, "--json").out)
    assert [(one["version"], one["num_new_rows"], one["num_new_series"]) for one in found] == [(1, 4, 2), (2, 2, 1)]

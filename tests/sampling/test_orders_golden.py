"""The golden orders never change: a state that was saved years ago resumes at the sample that comes next.

tests/data/orders.json is made by `python -m tests.sampling.golden`. If this test fails, the order has changed; writing the file
anew would hide that states saved by earlier versions no longer mean the same, which is a break of the format.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.sampling import golden

CASES = json.loads(golden.FILE.read_text())


@pytest.fixture(scope="module")
def found() -> dict[tuple[str, int, int], dict[str, Any]]:
    return {(case["order"], case["samples"], case["epoch"]): case for case in golden.golden()}


def test_every_case_is_there(found: dict[tuple[str, int, int], dict[str, Any]]) -> None:
    assert [(case["order"], case["samples"], case["epoch"]) for case in CASES] == list(found)


@pytest.mark.promise("P8")
@pytest.mark.parametrize("name", [*golden.ORDERS, *golden.SMALL_ORDERS])
def test_the_order_is_what_it_always_was(found: dict[tuple[str, int, int], dict[str, Any]], name: str) -> None:
    cases = [case for case in CASES if case["order"] == name]
    assert len(cases) >= 3
    for case in cases:
        assert found[name, case["samples"], case["epoch"]] == case


@pytest.mark.promise("P8", control=True)
def test_the_cases_distinguish_orders() -> None:
    hashes = {(case["order"], case["epoch"]): case["xxh3"] for case in CASES if case["samples"] == 99_000}
    shuffled = {key: value for key, value in hashes.items() if key[0] != "Sequential()"}
    assert len(set(shuffled.values())) == len(shuffled)

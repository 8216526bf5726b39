"""The pytest fixture `stoker_gate`: a test fails if a step does more than its budget allows.

    def test_step(stoker_gate):
        stoker_gate(train_step, batches, budget="budgets/step.json")

pytest loads this file in every project that has stoker installed, so it imports nothing that takes time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stoker.gate.budget import Gate

WRITE = "--stoker-write"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes budgets."""
    parser.getgroup("stoker").addoption(WRITE, action="store_true", help="write the budgets of `stoker_gate` from this run")


@pytest.fixture
def stoker_gate(request: pytest.FixtureRequest) -> Callable[..., Gate]:
    """Compare what a function does in a step with a budget, whose path is relative to the folder of the test."""

    def gate(train_step: Callable[[Any], Any], batches: Iterable[Any], *, budget: str | Path, **options: int) -> Gate:
        from stoker.gate.gate import gate_step

        __tracebackhide__ = True
        path, write = request.path.parent / budget, bool(request.config.getoption(WRITE))
        if not write and not path.exists():
            pytest.fail(f"{path} is not there; expected a budget. Write it with pytest {WRITE}.", pytrace=False)
        compared = gate_step(train_step, batches, budget=path, write=write, **options)
        if not compared.ok:
            pytest.fail(f"{compared}\nIf that is intended, write the budget again: pytest {WRITE}", pytrace=False)
        return compared

    return gate

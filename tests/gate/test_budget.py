"""The budget: summarized from the counts of steps, and read strictly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gate.test_gate import counted, written

from stoker.errors import ConfigError, TrainError
from stoker.gate.budget import read_budget, summarize


def test_too_few_steps_say_nothing() -> None:
    with pytest.raises(TrainError, match="7 steps were counted; expected at least 8"):
        summarize([counted(ops=1)] * 7, device="cpu", torch="2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-9], "is not JSON"),
        (lambda text: text.replace('"schema": 1', '"schema": 2'), "Invalid enum value 2"),
        (lambda text: text.replace('"steps"', '"stops"'), "unknown field `stops`"),
        (lambda text: text.replace('"ops": ', '"oops": ', 1), "'oops' is not a count"),
        (lambda text: text.replace('"ops": ', '"ops": 1, "ops": ', 1), "the key 'ops' comes twice"),
        (lambda text: text.replace('"syncs": ', '"syncs": 0.', 1), "Expected `int`"),
    ],
)
def test_a_budget_is_checked_strictly(tmp_path: Path, change: Callable[[str], str], message: str) -> None:
    path = written(tmp_path / "budget.json")
    path.write_text(change(path.read_text()))
    with pytest.raises(ConfigError, match=message):
        read_budget(path)

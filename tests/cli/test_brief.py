"""`--json brief`: at most 2 KB of JSON, with the verdict, from every command that judges."""

from __future__ import annotations

import json
from typing import Any

import click
import pytest
from click.testing import CliRunner

from stoker.cli import audit, compare, diagnose, gate, watch
from stoker.cli.brief import MOST_BYTES, BriefCommand, print_result, shortened

LONG: dict[str, Any] = {
    "verdict": "data",
    "causes": [{"name": f"cause {number}", "sentence": "word " * 200, "parts": list(range(100))} for number in range(40)],
    **{f"more {number}": {"deep": {"deeper": ["x" * 500] * 9}} for number in range(60)},
}


@pytest.mark.parametrize("value", [{}, {"verdict": "data", "share": 0.5}, {"verdict": float("nan")}, LONG])
def test_a_result_is_at_most_2_kb(value: dict[str, Any]) -> None:
    short = shortened(value)
    assert len(json.dumps(short, allow_nan=False).encode()) <= MOST_BYTES
    assert short.get("verdict") == (value.get("verdict") if value.get("verdict") == "data" else None)


def test_a_short_result_is_whole() -> None:
    value = {"ok": False, "checks": [{"kind": "leak", "text": "3 samples"}]}
    assert shortened(value) == value
    assert shortened({"causes": LONG["causes"]})["causes"][-1].endswith(" more")


@pytest.mark.parametrize("module", [audit, compare, diagnose, gate, watch])
def test_every_command_that_judges_has_it(module: Any) -> None:
    assert isinstance(module.command, BriefCommand)


def test_the_word_after_json_asks_for_it() -> None:
    @click.command(cls=BriefCommand, doing=None)
    @click.argument("script")
    @click.option("--json", "as_json", is_flag=True)
    def command(script: str, as_json: bool) -> None:
        print_result({"script": script, "text": "x" * 5000})

    assert json.loads(CliRunner().invoke(command, ["--json", "a.py"]).stdout)["text"] == "x" * 5000
    short = json.loads(CliRunner().invoke(command, ["--json", "brief", "a.py"]).stdout)
    assert (short["script"], len(short["text"]) < 500) == ("a.py", True)

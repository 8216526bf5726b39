"""The page on diagnosing says what is true: every verdict, every option and every field is in it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click
import pytest
from tests.diagnose.findings import on_gpu
from tests.diagnose.schema import RECORDS, rows

from stoker.cli.diagnose import NOTHING, command
from stoker.diagnose import rule
from stoker.diagnose.finding import text
from stoker.diagnose.measurements import SCHEMA, Verdict
from stoker.diagnose.thresholds import RULE
from stoker.sandbox import sandbox

PAGE = (Path(__file__).parents[2] / "docs" / "diagnosing.md").read_text()
SCHEMA_PART = PAGE.split(f"## JSON, version {SCHEMA}\n")[1]


def reported_rows(section: str) -> list[tuple[str, str]]:
    """Return name and type of the fields that a section of the page has."""
    return re.findall(r"^- `(\w+)` (.+?)(?:: \S.*)?$", section, re.MULTILINE)


def sections() -> dict[str, str]:
    titles = re.split(r"^### (\w+)\n", SCHEMA_PART, flags=re.MULTILINE)
    return dict(zip(titles[1::2], titles[2::2], strict=True))


def test_every_record_has_a_section_and_nothing_else_has() -> None:
    assert list(sections()) == [record.__name__ for record in RECORDS]


@pytest.mark.promise("P21")
@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_reported_with_its_type(record: type) -> None:
    assert reported_rows(sections()[record.__name__]) == rows(record)


def test_what_is_printed_has_these_fields_and_second() -> None:
    printed = on_gpu().as_dict()
    assert set(printed) == {name for name, _ in rows(type(on_gpu()))} | {"second"}
    assert printed["second"] == "launch"
    assert "`second`: the verdict of the second cause" in SCHEMA_PART


@pytest.mark.promise("P21", control=True)
def test_negative_control_a_field_that_is_not_reported_is_found() -> None:
    section = sections()["SourceLine"].replace("`line` integer", "`line` number")
    assert reported_rows(section) != rows(dict(zip(sections(), RECORDS, strict=True))["SourceLine"])
    assert reported_rows(sections()["SourceLine"].replace("`line`", "`row`")) != rows(RECORDS[2])


def test_every_verdict_is_explained() -> None:
    part = PAGE.split("## What each verdict means\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| \S.* \|$", part, re.MULTILINE) == list(get_args(Verdict))


def test_the_limits_are_those_of_the_rule() -> None:
    for told in (
        f"comes first from {RULE.waste_first:.0%}",
        f"first from {RULE.optimizer_first:.0%} of the work on",
        f"fewer than {RULE.min_steps} clean steps",
        f"vary by over {RULE.max_spread:.0%}",
        f"With over {RULE.rare_verdict_share:.0%} of all time",
        f"From {RULE.max_wait_for_cores:.0%} of the time that other programs have the cores on (or {RULE.max_gpu_taken:.0%} of the GPU's)",
    ):
        assert told.replace("%", " %") in " ".join(PAGE.split()), told
    assert sorted({*rule.ON_CPU, *rule.ON_CUDA}) == sorted(set(get_args(Verdict)) - {"straggler", "communication", "none"})


def test_every_cache_that_passes_is_reported() -> None:
    told = PAGE.split("**Caches pass through**")[1].split("\n\n")[0]
    for name in (*(f"~/{one}" for one in sandbox.IN_HOME), *sandbox.VARIABLES):
        assert f"`{name}`" in told or "CACHE" in name, name


def test_every_option_and_exit_code_is_reported() -> None:
    part = PAGE.split("## The command\n")[1].split("\n## ")[0]
    options = {option.opts[0] for option in command.params if isinstance(option, click.Option)}
    assert set(re.findall(r"^\| `(-[-\w]+)", part, re.MULTILINE)) == options
    assert re.search(rf"^\| {NOTHING} \| no verdict can be given", part, re.MULTILINE)


def test_the_example_is_what_is_printed() -> None:
    shown = PAGE.split("```text\n")[1].split("```")[0]
    assert shown
    assert text(on_gpu()).startswith(shown)

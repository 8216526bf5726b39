"""The page on diagnosing says what is true: every verdict, every option and every field is in it, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import click
import pytest
from tests.diagnose.findings import on_gpu
from tests.diagnose.schema import RECORDS, rows

from stoker.cli.diagnose import NO_VERDICT, command
from stoker.diagnose import attribution, caches, verdict
from stoker.diagnose.measurements import SCHEMA, Verdict
from stoker.diagnose.render import text

PAGE = (Path(__file__).parents[2] / "docs" / "diagnosing.md").read_text()
SCHEMA_PART = PAGE.split(f"## JSON, version {SCHEMA}\n")[1]


def told_rows(section: str) -> list[tuple[str, str]]:
    """Name and type of the fields that a section of the page has, each with some words."""
    return re.findall(r"^\| `(\w+)` \| (.+?) \| \S.* \|$", section, re.MULTILINE)


def sections() -> dict[str, str]:
    titles = re.split(r"^### (\w+)\n", SCHEMA_PART, flags=re.MULTILINE)
    return dict(zip(titles[1::2], titles[2::2], strict=True))


def test_every_record_has_a_section_and_nothing_else_has() -> None:
    assert list(sections()) == [record.__name__ for record in RECORDS]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_is_told_with_its_type(record: type) -> None:
    assert told_rows(sections()[record.__name__]) == rows(record)


def test_what_is_printed_has_these_fields_and_second() -> None:
    printed = on_gpu().as_dict()
    assert set(printed) == {name for name, _ in rows(type(on_gpu()))} | {"second"}
    assert printed["second"] == "launch"
    assert "`second`: the verdict of the second cause" in SCHEMA_PART


def test_negative_control_a_field_that_is_not_told_is_found() -> None:
    section = sections()["Place"].replace("| `line` | integer |", "| `line` | number |")
    assert told_rows(section) != rows(dict(zip(sections(), RECORDS, strict=True))["Place"])
    assert told_rows(sections()["Place"].replace("`line`", "`row`")) != rows(RECORDS[2])


def test_every_verdict_is_explained() -> None:
    part = PAGE.split("## What each verdict means\n")[1].split("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \| \S.* \| \S.* \|.* \|$", part, re.MULTILINE) == list(get_args(Verdict))


def test_the_limits_are_those_of_the_rule() -> None:
    for told in (
        f"come first from {verdict.WASTE:.0%}",
        f"first from {verdict.OPTIMIZER:.0%} of the work on",
        f"first from {verdict.DISPATCH:.0%} of the work on",
        f"fewer than {verdict.FEWEST_STEPS} clean steps, "
        f"other programs on the cores for over {verdict.LARGEST_WAIT:.0%} of the time",
        f"a spread of T over {verdict.LARGEST_SPREAD * verdict.WATCHED:.0%} "
        f"({verdict.LARGEST_SPREAD:.0%} where it is unknown who used the cores; "
        f"GPU: {verdict.LARGEST_SPREAD_ON_CUDA:.0%}, several processes: {verdict.LARGEST_SPREAD_OF_RANKS * verdict.WATCHED:.0%} "
        f"and {verdict.LARGEST_SPREAD_OF_RANKS:.0%})",
        f"parts that miss T by over {verdict.LARGEST_RESIDUAL:.0%}",
        f"a mean of T that is over {verdict.LARGEST_TAIL:.0%} from its median",
        f"rare steps that hold over {attribution.HOLDS:.0%} of the time",
    ):
        assert told.replace("%", " %") in PAGE, told
    assert sorted({*verdict.ON_CPU, *verdict.ON_CUDA}) == sorted(set(get_args(Verdict)) - {"straggler", "communication", "none"})


def test_every_cache_that_passes_is_told() -> None:
    told = PAGE.split("**Caches pass through**")[1].split("\n\n")[0]
    for name in (*(f"~/{one}" for one in caches.IN_HOME), *caches.VARIABLES, caches.COMPILED):
        assert f"`{name}`" in told, name


def test_every_option_and_exit_code_is_told() -> None:
    part = PAGE.split("## The command\n")[1].split("\n## ")[0]
    options = {option for one in command.params if isinstance(one, click.Option) for option in one.opts}
    assert set(re.findall(r"^\| `(-[-\w]+)", part, re.MULTILINE)) == options
    assert re.search(rf"^\| {NO_VERDICT} \| no verdict can be given", part, re.MULTILINE)


def test_the_example_is_what_is_printed() -> None:
    shown = PAGE.split("-- --epochs 1\n")[1].split("```")[0]
    assert text(on_gpu()).startswith(shown)

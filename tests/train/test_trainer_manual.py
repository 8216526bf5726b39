"""The page on training says what is true: its examples run, its configuration is one, and it has every field."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.inspect import StructType, type_info

from stoker.experiment import load
from stoker.experiment.config import Config
from stoker.experiment.parse import docstrings, known_fields, structs_of

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, second = blocks("python")
    exec(compile(first, str(PAGE), "exec"), names)
    told = re.search(r"# (finished after .*?) in …", first)
    assert told is not None
    assert str(names["result"]).startswith(told[1])
    exec(compile(second, str(PAGE), "exec"), names)
    shown = PAGE.read_text()
    for path in (tmp_path / "runs" / "walks").iterdir():
        if not path.name.startswith("."):
            assert f"  {path.name}" in shown


def test_the_configuration_is_one(tmp_path: Path) -> None:
    [text] = blocks("yaml")
    (tmp_path / "config.yaml").write_text(text)
    assert load(tmp_path / "config.yaml").train.epochs == 25


def test_every_field_is_in_the_table() -> None:
    page = PAGE.read_text()
    info = type_info(Config)
    assert isinstance(info, StructType)
    sections = {field.name for field in info.fields}
    for one in known_fields(Config):
        text = docstrings(one.owner)[one.path[-1]]
        if one.dotted in sections:
            assert f"**{one.dotted}**: {text[0].lower()}{text[1:]}" in page, one.dotted
        else:
            assert re.search(rf"^\| `{re.escape(one.dotted)}` \| .* \| {re.escape(text)} \|$", page, re.MULTILINE), one.dotted
        for choice in structs_of(one.field.type):
            if choice.tag is not None:
                summary = (inspect.getdoc(choice.cls) or "").splitlines()[0]
                assert f"| `{one.dotted}: {choice.tag}` |  | {summary} |" in page, (one.dotted, choice.tag)

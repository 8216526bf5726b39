"""The page on training: its examples run, its configuration is valid, and the page of the configuration has every field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tools import config_page

from stoker.experiment import Config, load
from stoker.experiment.parse import known_fields

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    first, *others, exported = blocks("python")
    assert "model.pt2" in exported  # of a command, which the slow test of the page runs
    exec(compile(first, str(PAGE), "exec"), names)
    told = re.search(r"# (finished after .*?) in …", first)
    assert str(names["result"]).startswith(told[1])
    for block in others:
        exec(compile(block, str(PAGE), "exec"), names)
    shown = PAGE.read_text()
    for path in [*(tmp_path / "runs" / "walks").iterdir(), *(tmp_path / "runs" / "linear").iterdir()]:
        if not path.name.startswith("."):
            assert f"  {path.name}" in shown


def test_the_configuration_is_one(tmp_path: Path) -> None:
    text, *_ = blocks("yaml")  # the others are parts of one
    (tmp_path / "config.yaml").write_text(text)
    assert load(tmp_path / "config.yaml").train.epochs == 25


def test_the_page_of_the_configuration_has_every_field() -> None:
    page = config_page.page()
    assert config_page.PAGE.read_text() == page, "run: make reference"
    assert {one.dotted for one in known_fields(Config)} <= set(re.findall(r"^(?:\| `|## )([\w.]+)`?(?: \||$)", page, re.MULTILINE))

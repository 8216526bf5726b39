"""The folder of a run of a recipe: claimed once, resumed as the same run, refused in one line otherwise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stoker.errors import ConfigError, OptionError
from stoker.recipes.run_folder import RECIPE_NAME, claim_run, read_recipe

RECORD = {"recipe": "wave", "data": "a.csv", "settings": {"lr": 0.1}}


def check(settings: dict[str, Any]) -> None:
    if set(settings) != {"lr"}:
        raise TypeError(f"unexpected settings {sorted(settings)}")


def claim(folder: Path, record: dict[str, Any] = RECORD, *, resume: bool = False, overwrite: bool = False) -> None:
    claim_run(folder, record, results=["model.bin"], check=check, resume=resume, overwrite=overwrite)


def test_a_new_run_is_recorded_and_resumes_as_the_same(tmp_path: Path) -> None:
    claim(tmp_path / "run")
    assert read_recipe(tmp_path / "run", "wave", check=check) == RECORD
    claim(tmp_path / "run", resume=True)
    with pytest.raises(OptionError, match="is a run with other data or settings"):
        claim(tmp_path / "run", {**RECORD, "data": "b.csv"}, resume=True)


def test_an_earlier_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    claim(tmp_path / "run")
    for name in ("run.json", "model.bin", "notes.txt"):
        (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(OptionError, match="has a run already"):
        claim(tmp_path / "run")
    claim(tmp_path / "run", {**RECORD, "data": "b.csv"}, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["notes.txt", RECIPE_NAME]
    assert json.loads((tmp_path / "run" / RECIPE_NAME).read_text())["data"] == "b.csv"


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        (None, OptionError, "has no recipe.json, so it is not a run of wave"),
        ("{", ConfigError, "recipe.json is damaged"),
        ("[]", ConfigError, "recipe.json is damaged"),
        ('{"recipe": "wave"}', ConfigError, "recipe.json is damaged"),
        ('{"recipe": "wave", "settings": {}}', ConfigError, "recipe.json is damaged"),
        ('{"recipe": "tide"}', OptionError, "is a run of the recipe 'tide', not of wave"),
    ],
)
def test_other_folders_are_refused(tmp_path: Path, text: str | None, error: type[Exception], message: str) -> None:
    if text is not None:
        (tmp_path / RECIPE_NAME).write_text(text)
    with pytest.raises(error, match=message):
        read_recipe(tmp_path, "wave", check=check)

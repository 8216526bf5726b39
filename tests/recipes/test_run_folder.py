"""The folder of a run of a recipe: claimed once, resumed as the same run, refused in one line otherwise."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest

from stoker.errors import ConfigError, OptionError, TrainError
from stoker.extend import disk
from stoker.train import run
from stoker.train.run import Run
from stoker_recipes.run_folder import (
    RECIPE_NAME,
    check_free,
    check_same,
    claim_run,
    make_settings,
    read_recipe,
    read_settings,
    resumed_settings,
)

RECORD = {"recipe": "wave", "data": "a.csv", "settings": {"lr": 0.1}}


def check(record: dict[str, Any]) -> None:
    if set(record["settings"]) != {"lr"}:
        raise TypeError(f"unexpected settings {sorted(record['settings'])}")


def claim(folder: Path, record: dict[str, Any] = RECORD, *, overwrite: bool = False) -> None:
    claim_run(folder, record, results=["model.bin"], overwrite=overwrite)


def test_a_new_run_is_recorded_and_resumes_as_the_same(tmp_path: Path) -> None:
    claim(tmp_path / "run")
    assert read_recipe(tmp_path / "run", "wave", check=check) == RECORD
    check_same(tmp_path / "run", RECORD, check=check)
    with pytest.raises(OptionError, match="is a run with other data or settings"):
        check_same(tmp_path / "run", {**RECORD, "data": "b.csv"}, check=check)


def test_a_folder_of_something_else_is_not_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "notes.txt").write_text("precious")
    for overwrite in (False, True):
        with pytest.raises(OptionError, match="was not made by Stoker"):
            claim(tmp_path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    monkeypatch.setattr(disk, "claim_folder", lambda *given, **options: None)
    claim(tmp_path)
    assert (tmp_path / RECIPE_NAME).exists(), "negative control: without the check it is"


def test_an_earlier_run_is_replaced_only_when_asked(tmp_path: Path) -> None:
    claim(tmp_path / "run")
    Run(tmp_path / "run").end("finished")
    for name in ("slowdowns.jsonl", "model.bin", "notes.txt"):
        (tmp_path / "run" / name).write_text("{}")
    with pytest.raises(OptionError, match="has a run already"):
        claim(tmp_path / "run")
    claim(tmp_path / "run", {**RECORD, "data": "b.csv"}, overwrite=True)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "notes.txt", RECIPE_NAME]
    assert json.loads((tmp_path / "run" / RECIPE_NAME).read_text())["data"] == "b.csv"


def test_a_run_in_progress_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LOCK_TRIES", 1)
    claim(tmp_path)
    with Run(tmp_path), pytest.raises(TrainError, match="is being trained"):
        claim(tmp_path, overwrite=True)
    assert (tmp_path / "run.json").is_file()
    claim(tmp_path, overwrite=True)  # negative control: once it has ended
    assert not (tmp_path / "run.json").exists()


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


class Wave(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Settings of a recipe."""

    recipe: str = "wave"
    epochs: int = 1
    save_every: int | None = None

    def checked(self) -> Self:
        if self.epochs < 1:
            raise OptionError(f"epochs is {self.epochs}; expected an integer from 1.")
        return self


def test_settings_are_checked_written_and_read_again(tmp_path: Path) -> None:
    settings = make_settings(Wave, {"epochs": 3})
    claim(tmp_path / "run", msgspec.to_builtins(settings))
    assert read_settings(tmp_path / "run", Wave) == settings
    check_free(tmp_path / "run")  # it ended before its first step
    Run(tmp_path / "run").end("finished")
    with pytest.raises(OptionError, match="has a run already"):
        check_free(tmp_path / "run")
    for values, message in (({"epochs": "x"}, r"wave: Expected `int`"), ({"epochs": 0}, "epochs is 0")):
        with pytest.raises(OptionError, match=message):
            make_settings(Wave, values)


def test_a_resumed_run_keeps_its_settings(tmp_path: Path) -> None:
    claim(tmp_path / "run", msgspec.to_builtins(Wave(epochs=3)))
    assert resumed_settings(tmp_path / "run", Wave, {"save_every": 5}) == Wave(epochs=3, save_every=5)
    with pytest.raises(OptionError, match="epochs cannot change when a run is resumed"):
        resumed_settings(tmp_path / "run", Wave, {"epochs": 2})


@pytest.mark.parametrize("recipe", ["icecube", "timehut", "time-moe"])
def test_a_folder_without_a_record_is_not_resumed(tmp_path: Path, recipe: str) -> None:
    with pytest.raises((ConfigError, OptionError), match=f"is not a run of {recipe}"):
        training_of(recipe).resume(tmp_path)


def training_of(recipe: str) -> Any:
    return import_module(f"stoker_recipes.{recipe.replace('-', '_')}.training")


@pytest.mark.parametrize(
    ("recipe", "record"),
    [
        ("tabular", {"settings": {}}),
        ("tabular", {"settings": {}, "target": 3, "key": None, "context": None, "context_key": None, "encodings": {}}),
        ("timehut", {"settings": {}}),
        ("timehut", {"settings": {}, "data": ["a"], "test": None, "normalize": "auto"}),
        ("timehut", {"settings": [], "data": "a.tsv", "test": None, "normalize": "auto"}),
        ("icecube", {"data": 3}),
        ("time-moe", {}),
    ],
)
def test_a_forged_record_is_an_error_of_one_line(tmp_path: Path, recipe: str, record: dict[str, Any]) -> None:
    (tmp_path / RECIPE_NAME).write_text(json.dumps({"recipe": recipe, **record}))
    with pytest.raises(ConfigError, match=r"recipe\.json is damaged: ") as error:
        training_of(recipe).resume(tmp_path)
    assert "\n" not in str(error.value)

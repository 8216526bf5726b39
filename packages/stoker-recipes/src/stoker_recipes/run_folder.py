"""The folder of a run of a recipe: `recipe.json` marks it as one, and holds its data and settings.

claim_run      makes the folder of a new run; check_same compares that of a run to resume
read_recipe    reads recipe.json, settings as plain values; read_settings as a struct

"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import msgspec

from stoker.errors import ConfigError, OptionError
from stoker.extend import disk
from stoker.train import remove_run

RECIPE_NAME = "recipe.json"

Check = Callable[[dict[str, Any]], object]
Say = Callable[[str, str], None]
"""Called with a word and a sentence for each thing to report."""


def say_nothing(word: str, sentence: str) -> None:
    """Report nothing."""


def check_free(folder: str | os.PathLike[str] | None, *, overwrite: bool = False) -> Path | None:
    """Return the path of a folder, if one is wanted. Refuse one that has a run, unless it may be replaced."""
    if folder is None:
        return None
    folder = Path(folder)
    if not overwrite and ((folder / "run.json").exists() or (folder / "checkpoints").exists()):
        raise OptionError(
            f"{folder} has a run already. Pass resume=True to continue it, overwrite=True to replace it, or another folder.",
            parameter="resume",
        )
    return folder


def claim_run(folder: Path, record: Mapping[str, Any], *, results: Iterable[str] = (), overwrite: bool = False) -> None:
    """Make the folder of a new run.

    Args:
        folder: A new or empty folder, or that of a run of the same recipe.
        record: What `recipe.json` is to hold: its "recipe", the data, and the settings.
        results: Names of the files of an earlier run that a new one replaces, in addition to those of the trainer.
        overwrite: Whether an earlier run may be replaced.

    Raises:
        OptionError: The folder has a run that is not to be replaced, or something else.
        TrainError: Another process works on the run that is to be replaced.
    """
    check_free(folder, overwrite=overwrite)
    sign = f'"recipe": "{record["recipe"]}"'.encode()
    disk.claim_folder(folder, marker=RECIPE_NAME, sign=sign, advice="Give the run a folder of its own: folder=runs/name.")
    remove_run(folder)
    for name in results:
        disk.remove_folder(folder / name)
    disk.write_file(folder / RECIPE_NAME, json.dumps(record, indent=1).encode() + b"\n")


def check_same(folder: Path, record: Mapping[str, Any], *, check: Check) -> None:
    """Refuse to resume a run with other data or settings than `record`; see `read_recipe` for `check`."""
    if read_recipe(folder, str(record["recipe"]), check=check) != json.loads(json.dumps(record)):
        raise OptionError(
            f"{folder} is a run with other data or settings. Resume it with the same ones, or start a new run.", path=folder
        )


def read_recipe(folder: Path, recipe: str, *, check: Check) -> dict[str, Any]:
    """Read the data and settings of a run.

    Args:
        folder: The folder of the run.
        recipe: The recipe that it must be of.
        check: Is called with the content; raises ValidationError of msgspec, ValueError, KeyError or TypeError where it is not valid.

    Returns:
        The content of `recipe.json`.

    Raises:
        OptionError: It is not a run of this recipe.
        ConfigError: Its `recipe.json` is damaged.
    """
    path = folder / RECIPE_NAME
    try:
        record = dict(json.loads(path.read_bytes()))
        name = record["recipe"]
        if name == recipe:
            check(record)
    except FileNotFoundError:
        raise OptionError(
            f"{folder} has no {RECIPE_NAME}, so it is not a run of {recipe}. Give the folder of one.", path=folder
        ) from None
    except (msgspec.ValidationError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {str(error).rstrip('.')}.") from error
    if name != recipe:
        raise OptionError(f"{folder} is a run of the recipe {name!r}, not of {recipe}. Give the folder of one.", path=folder)
    return record


class CheckedSettings(Protocol):
    """A struct of settings."""

    def checked(self) -> Self:
        """Return the same settings; raises `OptionError` for values that do not fit together."""


S = TypeVar("S", bound=CheckedSettings)
MAY_CHANGE = frozenset({"max_seconds", "save_every"})
"""Settings that a resumed run may have others of: they do not change its steps."""


def make_settings(kind: type[S], values: Mapping[str, Any]) -> S:
    """Make settings of plain values; raises `OptionError` for an invalid one."""
    try:
        return msgspec.convert(values, kind).checked()
    except msgspec.ValidationError as error:
        raise OptionError(f"{_recipe_of(kind)}: {error}.") from error


def read_settings(folder: Path, kind: type[S]) -> S:
    """Read the settings of a run."""
    path, recipe = folder / RECIPE_NAME, _recipe_of(kind)
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind).checked()
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} has no {RECIPE_NAME}, so it is not a run of {recipe}. Start one: stoker train {recipe} …"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error


def _recipe_of(kind: type[Any]) -> str:
    """Return the name of the recipe, which is the default of a field."""
    return next(str(field.default) for field in msgspec.structs.fields(kind) if field.name == "recipe")


def resumed_settings(folder: Path, kind: type[S], changes: Mapping[str, Any]) -> S:
    """Read the settings of a run to resume, and change some; raises `OptionError` for one that cannot change."""
    settings = read_settings(folder, kind)
    refused = sorted(changes.keys() - MAY_CHANGE)
    if refused:
        raise OptionError(f"{refused[0]} cannot change when a run is resumed. Start another run.", parameter=refused[0])
    return msgspec.structs.replace(settings, **changes).checked()  # type: ignore[type-var]

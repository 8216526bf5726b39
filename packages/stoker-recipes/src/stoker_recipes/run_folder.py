"""The folder of a run of a recipe: `recipe.json` marks it as one, and holds its data and settings.

Recipes write the data beside the settings (`claim_run`), or a struct of settings that names the data (`write_settings`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

import msgspec

from stoker.errors import ConfigError, OptionError
from stoker.extend import disk
from stoker.train import remove_run

RECIPE_NAME = "recipe.json"

Check = Callable[[dict[str, Any]], object]


def claim_run(
    folder: Path, record: Mapping[str, Any], *, results: Iterable[str], check: Check, resume: bool, overwrite: bool
) -> None:
    """Take a folder for a run: a new one, or the same run again.

    Args:
        folder: The folder of the run.
        record: What `recipe.json` is to hold: its "recipe", the data, and "settings".
        results: Names of the files of an earlier run that a new one replaces, beside those of the trainer.
        check: Refuses settings; see `read_recipe`.
        resume: Whether the folder must have the same run already.
        overwrite: Whether an earlier run may be replaced.

    Raises:
        OptionError: The folder has a run although it is not to be replaced, or another run than the one to resume.
        TrainError: Another process works on the run that is to be replaced.
    """
    recipe = str(record["recipe"])
    if resume:
        if read_recipe(folder, recipe, check=check) != json.loads(json.dumps(record)):
            raise OptionError(f"{folder} is a run with other data or settings. Resume it with the same ones, or start a new run.")
        return
    if not overwrite and ((folder / "run.json").exists() or (folder / "checkpoints").exists()):
        raise OptionError(
            f"{folder} has a run already. Pass resume=True to continue it, overwrite=True to replace it, or another folder."
        )
    sign = f'"recipe": "{recipe}"'.encode()
    disk.claim_folder(folder, marker=RECIPE_NAME, sign=sign, advice="Give the run a folder of its own: folder=runs/name.")
    remove_run(folder)
    for name in results:
        disk.remove_folder(folder / name)
    disk.write_file(folder / RECIPE_NAME, json.dumps(record, indent=1).encode() + b"\n")


def read_recipe(folder: Path, recipe: str, *, check: Check) -> dict[str, Any]:
    """The data and settings of a run.

    Args:
        folder: The folder of the run.
        recipe: The recipe that it must be of.
        check: Is called with the settings; raises ValueError, KeyError or TypeError where they are not valid.

    Returns:
        The content of `recipe.json`.

    Raises:
        OptionError: It is not a run of this recipe.
        ConfigError: Its `recipe.json` is damaged.
    """
    path = folder / RECIPE_NAME
    try:
        found = dict(json.loads(path.read_bytes()))
        name = found["recipe"]
        if name == recipe:
            check(found["settings"])
    except FileNotFoundError:
        raise OptionError(f"{folder} has no {RECIPE_NAME}, so it is not a run of {recipe}. Give the folder of one.") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error
    if name != recipe:
        raise OptionError(f"{folder} is a run of the recipe {name!r}, not of {recipe}. Give the folder of one.")
    return found


class CheckedSettings(Protocol):
    """A struct of settings."""

    def checked(self) -> Self:
        """The same settings; raises `OptionError` for values that do not fit together."""


S = TypeVar("S", bound=CheckedSettings)
MAY_CHANGE = frozenset({"max_seconds", "save_every"})
"""Settings that a resumed run may have others of: they do not change its steps."""


def make_settings(kind: type[S], given: Mapping[str, Any], *, recipe: str) -> S:
    """Settings from plain values; raises `OptionError` for an invalid one."""
    try:
        return msgspec.convert(given, kind).checked()
    except msgspec.ValidationError as error:
        raise OptionError(f"{recipe}: {error}.") from error


def check_free(folder: Path) -> None:
    """Refuse a folder that has a run, for a recipe whose runs are not replaced."""
    if (folder / "run.json").exists() or (folder / RECIPE_NAME).exists():
        raise OptionError(f"{folder} has a run already. Resume it (stoker train --resume {folder}), or choose another folder.")


def write_settings(folder: Path, settings: CheckedSettings) -> None:
    """Make the folder of a new run, with its settings."""
    disk.make_folder(folder)
    disk.write_file(folder / RECIPE_NAME, msgspec.json.format(msgspec.json.encode(settings), indent=2) + b"\n")


def read_settings(folder: Path, kind: type[S], *, recipe: str) -> S:
    """Read the settings of a run."""
    path = folder / RECIPE_NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind).checked()
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} has no {RECIPE_NAME}, so it is not a run of {recipe}. Start one: stoker train {recipe} …"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}.") from error


def change_settings(settings: S, changes: Mapping[str, Any]) -> S:
    """The settings of a resumed run; raises `OptionError` for one that cannot change."""
    refused = sorted(changes.keys() - MAY_CHANGE)
    if refused:
        raise OptionError(f"{refused[0]} cannot change when a run is resumed. Start another run.")
    return msgspec.structs.replace(settings, **changes).checked()  # type: ignore[type-var]

"""The folder of a run of a recipe: `recipe.json` marks it as one, and holds its data and settings."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from stoker import _disk
from stoker.errors import ConfigError, OptionError

RECIPE_NAME = "recipe.json"
OF_EVERY_RUN = ("run.json", "metrics.jsonl", "checkpoints")

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
    _disk.claim_folder(folder, marker=RECIPE_NAME, sign=sign, advice="Give the run a folder of its own: folder=runs/name.")
    for name in (*OF_EVERY_RUN, *results):
        _disk.remove_folder(folder / name)
    _disk.write_file(folder / RECIPE_NAME, json.dumps(record, indent=1).encode() + b"\n")


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

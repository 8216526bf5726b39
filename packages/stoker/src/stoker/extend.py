"""Extensions: what other packages register with Stoker by entry points, in their `pyproject.toml`.

    [project.entry-points."stoker.commands"]
    waves = "stoker_waves.commands:waves"    # a click command or group: `stoker waves ...`

    [project.entry-points."stoker.recipes"]
    waves = "stoker_waves.recipe:RECIPE"     # a `Recipe`: `stoker train waves`, and `stoker predict` for its runs

    [project.entry-points."stoker.formats"]
    waves = "stoker_waves.files:FORMAT"      # a `FolderFormat`: folders that `stoker pack` reads

An extension is imported when it is used. The recipes of Stoker are such a package, `stoker_recipes`.
docs/extending.md has a whole example.

In addition to the public names of stoker, an extension may import these from here:

    disk                                        atomic writes, folders and locks, which tests can interrupt (`stoker._disk`)
    kernel, prefetch, clear_bytes, lowest_bit   numba kernels with a compile cache, and operations within them; ALIGNMENT of their arrays
    check_device                                a device by its name, or an error that names it
    readable_bytes, printable                   sizes and untrusted text in messages
    lazy                                        the public names of a package, each imported when first used
    Array                                       the type of a NumPy array
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stoker import _disk as disk
from stoker._device import check_device as check_device
from stoker._lazy import lazy as lazy
from stoker._text import how_to_install
from stoker._text import printable as printable
from stoker._text import readable_bytes as readable_bytes
from stoker.errors import ConfigError, ExtensionError

if TYPE_CHECKING:
    import click

    from stoker._kernels import ALIGNMENT as ALIGNMENT
    from stoker._kernels import clear_bytes as clear_bytes
    from stoker._kernels import kernel as kernel
    from stoker._kernels import lowest_bit as lowest_bit
    from stoker._kernels import prefetch as prefetch
    from stoker._types import Array as Array

    __all__ = ["disk"]  # for type checkers: each other name is one of this file by its alias
else:
    # Hidden from type checkers: a module with __getattr__ would have every name, misspelt ones too. NumPy and numba load when first used.
    __getattr__, __dir__, _names = lazy(__name__)
    # The functions below are for the core, which looks up what is registered.
    __all__ = sorted([*_names, *"FolderFormat RECIPE_NAME Recipe check_device disk lazy printable readable_bytes".split()])

Group = Literal["commands", "recipes", "formats"]
RECIPE_NAME = "recipe.json"
"""The file that marks the folder of a run as one of a recipe: an object whose entry "recipe" is the name."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A workload that commands of Stoker run.

    Attributes:
        commands: Versions of Stoker's commands for this recipe: "train" is `stoker train NAME`, "pack" is `stoker pack --recipe NAME`,
            "tune batch" and "tune search" are `stoker tune batch NAME` and so on, "export" is `stoker export` of its runs.
        open_run: Opens the folder of a run for `stoker predict`: `open_run(folder, latest=, device=)` returns a `TrainedRun`. None
            where the recipe makes no predictions per window.
        owns_config: Whether `stoker train FILE.yaml` is for this recipe, by the contents of the file.
        owns_folder: Whether a folder without `recipe.json` has a model of this recipe, such as a published checkpoint.
    """

    commands: Mapping[str, click.Command] = field(default_factory=dict)
    open_run: Callable[..., Any] | None = None
    owns_config: Callable[[Mapping[str, Any]], bool] = lambda tree: False
    owns_folder: Callable[[Path], bool] = lambda folder: False


@dataclass(frozen=True, kw_only=True)
class FolderFormat:
    """A folder that `stoker.pack` reads as one source.

    Attributes:
        matches: Whether a folder has this format, by its files.
        open: Returns the reader, a `DataSource` of `stoker.store`: `open(path, name)`.
        extra_files: Files in such a folder that the reader does not read, which a pack then notes.
    """

    matches: Callable[[Path], bool]
    open: Callable[[Path, str], Any]
    extra_files: Callable[[Path], list[Path]] = lambda path: []


@cache
def registered(group: Group) -> dict[str, EntryPoint]:
    """Return the extensions of a group by name, without importing them."""
    return {entry.name: entry for entry in sorted(entry_points(group=f"stoker.{group}"), key=lambda entry: entry.name)}


@cache
def load(group: Group, name: str) -> Any:
    """Import an extension.

    Raises:
        ExtensionError: No package registers it, or its module cannot be imported.
    """
    entry = registered(group).get(name)
    if entry is None:
        known = ", ".join(registered(group)) or "none"
        raise ExtensionError(
            f"{name!r} is not one of the installed {group} (stoker.{group}): {known}. To install Stoker's recipes: {how_to_install()}"
        )
    try:
        return entry.load()
    except (ImportError, AttributeError) as error:
        raise ExtensionError(
            f"{name!r} of stoker.{group} cannot be imported from {entry.value} ({error}). Install its package again."
        ) from error


def recipe(name: str) -> Recipe:
    """Return a recipe by name; see `load` for errors."""
    loaded: Recipe = load("recipes", name)
    return loaded


def recipe_of_run(folder: Path) -> str | None:
    """Return the name of the recipe that a run is of, or None for the run of a configuration.

    Raises:
        ConfigError: The file that names the recipe is damaged.
        ExtensionError: The recipe is not installed.
    """
    path = folder / RECIPE_NAME
    if not path.is_file():
        return None
    try:
        name = json.loads(path.read_bytes())["recipe"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path} is damaged: {error}. Put it back, or train the run again.", path=path) from error
    recipe(str(name))
    return str(name)


def folder_format(path: Path) -> FolderFormat | None:
    """Return the registered format of a folder, or None."""
    formats: list[FolderFormat] = [load("formats", name) for name in registered("formats")]
    return next((known for known in formats if known.matches(path)), None)

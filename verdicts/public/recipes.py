"""A recipe: one public script at a pinned commit, the data and arguments it needs, and the edits that take causes away.

`recipes.toml` has the recipes. Nothing of a script is shipped: `fetch` takes its files from a git repository, `lay_out` makes the
folder in which it runs.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from verdicts.public import data

Edit = tuple[str, str, str]
RECIPES = Path(__file__).parent / "recipes.toml"


class Repository(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where scripts come from."""

    commit: str
    licence: str


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one script is run. `recipes.toml` explains the fields."""

    name: str
    set: int = 1
    repository: str
    script: str
    files: list[str] = []
    data: list[tuple[str, str]] = []
    folders: list[str] = []
    path: str = ""
    arguments: str = ""
    edits: list[Edit] = []
    larger: str = ""
    larger_edits: list[Edit] = []
    times: int = 1
    replay: list[Edit] = []
    host: list[Edit] = []
    workers: bool = False
    not_ablated: str = ""
    seconds: float = 0.0

    @property
    def device(self) -> str:
        """Where it runs; all recipes are for a CPU."""
        return "cpu"

    @property
    def folder(self) -> PurePosixPath:
        """The folder of the script in its repository; there it is started."""
        return PurePosixPath(self.script).parent


class _Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    repositories: dict[str, Repository]
    scripts: list[Recipe]


@dataclass(frozen=True, kw_only=True)
class Recipes:
    """All recipes by name, and their repositories by owner/name."""

    repositories: dict[str, Repository]
    scripts: dict[str, Recipe]


def read_recipes(path: Path = RECIPES) -> Recipes:
    """The recipes of a file.

    Raises:
        ValueError: Two recipes have one name, or a recipe names an unknown repository or data maker.
    """
    table = msgspec.toml.decode(path.read_bytes(), type=_Table)
    scripts = {recipe.name: recipe for recipe in table.scripts}
    if len(scripts) < len(table.scripts):
        raise ValueError(f"{path.name}: two recipes have the same name")
    for recipe in table.scripts:
        if recipe.repository not in table.repositories:
            raise ValueError(f"{path.name}: {recipe.name} names the unknown repository {recipe.repository}")
        for maker, _ in recipe.data:
            if maker not in data.MAKERS:
                raise ValueError(f"{path.name}: {recipe.name} names the unknown data maker {maker}")
    return Recipes(repositories=table.repositories, scripts=scripts)


def fetch(recipe: Recipe, repository: Repository, *, source: str, target: Path) -> None:
    """Bring the Python files that a script needs from its repository to `target`.

    Args:
        recipe: The script.
        repository: Its repository.
        source: A git URL or a folder, with {owner} and {name} where those of the repository belong.
        target: The folder that gets the files; what is there already stays.
    """
    owner, name = recipe.repository.split("/")
    place = source.format(owner=owner, name=name)
    cloned = target.parent / f".{owner}+{name}"
    if not Path(place).is_dir():
        if not cloned.exists():
            subprocess.run(["git", "clone", "--quiet", "--bare", "--filter=blob:none", place, str(cloned)], check=True)
        place = str(cloned)
    folder = "" if str(recipe.folder) == "." else f"{recipe.folder}/"
    own = f"{folder}**/*.py" if folder else "*.py"
    patterns = [f":(glob){pattern}" for pattern in [own, *recipe.files]]
    archive = subprocess.run(
        ["git", "-C", place, "archive", repository.commit, "--", *patterns], check=True, stdout=subprocess.PIPE
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(target, filter="data")


def lay_out(recipe: Recipe, fetched: Path, target: Path) -> Path:
    """Make a folder to run a script in: its files with its edits, and its data; returns the folder where it is started."""
    shutil.copytree(fetched, target, dirs_exist_ok=True)
    folder = target / recipe.folder
    edit(folder, recipe.edits)
    for maker, path in recipe.data:
        data.make(maker, folder / path)
    for path in recipe.folders:
        (folder / path).mkdir(parents=True, exist_ok=True)
    return folder


def edit(folder: Path, edits: list[Edit]) -> None:
    """Change the files of a script: every occurrence of a text.

    Raises:
        ValueError: A file does not have the text.
    """
    for name, old, new in edits:
        text = (folder / name).read_text()
        if old not in text:
            raise ValueError(f"{folder / name} has no {old!r}")
        (folder / name).write_text(text.replace(old, new))
